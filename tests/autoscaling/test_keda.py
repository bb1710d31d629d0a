"""KEDA at run time, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from autoscaling.keda import Answer, Keda, ScalerError, read_value
from autoscaling.keda_spec import ScaledObject, is_whole_number
from autoscaling.play import START
from tests.autoscaling.scaled_objects import changed, trigger

META = "triggers.0.metadata"
SCHOOL = {"timezone": "UTC", "start": "0 8 * * *", "end": "0 9 * * *", "desiredReplicas": "8"}


def keda(*changes: tuple[str, Any], last_active: float | None = None) -> Keda:
    return Keda(ScaledObject.of(changed(*changes)), START, last_active)


@pytest.mark.parametrize(
    ("answer", "strict", "lenient"),
    [
        ([3.5], 3.5, 3.5),
        ([0.0], 0.0, 0.0),
        ([], None, 0.0),  # empty
        ([math.nan], None, 0.0),  # a division of nothing by nothing
        ([math.inf], None, 0.0),
        ([1.0, 2.0], None, None),  # K4: two pods, two samples
        (None, None, None),  # ignoreNullValues does not help a Prometheus that is down
    ],
)
def test_K4_what_an_answer_is_worth(answer: Answer, strict: float | None, lenient: float | None) -> None:
    for ignore, expected in (("false", strict), ("true", lenient)):
        (one,) = ScaledObject.of(changed((f"{META}.ignoreNullValues", ignore))).triggers
        if expected is None:
            with pytest.raises(ScalerError, match="requests"):
                read_value(one, answer, START)
        else:
            assert read_value(one, answer, START) == expected


def test_a_cron_trigger_asks_for_one_outside_its_window() -> None:
    one = ScaledObject.of(changed(("triggers.0", trigger("cron", **SCHOOL)))).triggers[0]
    assert read_value(one, None, START.replace(hour=8)) == 8
    assert read_value(one, None, START.replace(hour=9)) == 1


@pytest.mark.parametrize(
    ("failures", "behavior", "current", "value"),
    [
        (3, "static", 8, None),  # as many as the threshold: an error still
        (4, "static", 8, 40),  # 4 replicas of 10
        (4, "static", 1, 40),
        (4, "currentReplicas", 8, 80),
        (4, "currentReplicasIfHigher", 8, 80),
        (4, "currentReplicasIfHigher", 1, 40),
        (4, "currentReplicasIfLower", 8, 40),
        (4, "currentReplicasIfLower", 1, 10),
    ],
)
def test_fallback(failures: int, behavior: str, current: int, value: float | None) -> None:
    one = keda(("fallback.behavior", behavior))
    metrics = [one.metrics(START, current, {"requests": None}) for _ in range(failures)][-1]
    assert [metric.value for metric in metrics] == [value]


def test_one_success_starts_the_count_of_failures_anew() -> None:
    one = keda()
    answers: list[Answer] = [None, None, None, [20.0], None, None, None]
    values = [one.metrics(START, 2, {"requests": answer})[0].value for answer in answers]
    assert values == [None, None, None, 20.0, None, None, None]


@pytest.mark.parametrize(("target", "value"), [("100", 400.0), ("0.8", None), ("100.0", None)])
def test_a_fraction_as_target_turns_the_fallback_off(target: str, value: float | None) -> None:
    one = keda(("advanced.scalingModifiers", {"formula": "requests * 2", "target": target}))
    assert one.metrics(START, 1, {"requests": [21.0]})[0].value == 42
    assert [one.metrics(START, 1, {"requests": None})[0].value for _ in range(4)][-1] == value


@pytest.mark.parametrize(
    ("text", "whole"),
    [("100", True), ("+1", True), ("0", False), ("-1", False), ("0.8", False), ("1.0", False), ("1e2", False)],
)
def test_whole_numbers_are_what_go_parses(text: str, whole: bool) -> None:
    assert is_whole_number(text) is whole


ZERO = [("minReplicaCount", 0), ("cooldownPeriod", 300), (f"{META}.activationThreshold", "5")]


@pytest.mark.parametrize(
    ("current", "last_active", "answer", "replicas"),
    [
        (0, None, [6.0], 1),  # awake
        (0, None, [5.0], 0),  # active is strictly more than the threshold
        (3, 0, [6.0], 3),  # the HPA's business
        (3, 700, [0.0], 3),  # idle for 300 s, which is not yet more
        (3, 699, [0.0], 0),  # at once, from 3
        (3, None, [0.0], 0),  # never active: no cooldown but the initial one
        (3, 0, None, 3),  # inactive by an error: a fallback keeps KEDA from the step to 0
        (0, 0, None, 0),  # and does not wake
    ],
)
def test_between_zero_and_one(
    current: int, last_active: float | None, answer: Sequence[float] | None, replicas: int
) -> None:
    one = keda(*ZERO, last_active=last_active)
    assert one.poll(1000, START, current, {"requests": answer}) == replicas


def test_an_error_without_a_fallback_holds_too() -> None:
    assert keda(*ZERO, ("fallback", None), last_active=0).poll(1000, START, 3, {"requests": None}) == 3


def test_a_fallback_of_no_replicas_does_not_hold() -> None:
    assert keda(*ZERO, ("fallback.replicas", 0), last_active=0).poll(1000, START, 3, {"requests": None}) == 0


def test_the_initial_cooldown_covers_the_first_load() -> None:
    one = keda(*ZERO, ("initialCooldownPeriod", 900))
    assert one.poll(900, START, 1, {"requests": [0.0]}) == 1
    assert one.poll(901, START, 1, {"requests": [0.0]}) == 0


def test_activity_is_remembered_unless_something_fails_beside_it() -> None:
    one = keda(*ZERO, ("triggers.-", trigger("external-push", "in_flight", scalerAddress="a")))
    one.poll(10, START, 1, {"requests": [9.0], "in_flight": [0.0]})
    assert one.last_active == 10
    one.poll(20, START, 1, {"requests": None, "in_flight": [9.0]})
    assert one.last_active == 10


def test_it_lifts_to_the_minimum_and_wakes_to_it() -> None:
    assert keda(("minReplicaCount", 2)).poll(0, START, 1, {"requests": [0.0]}) == 2
    assert keda(("minReplicaCount", 2)).poll(0, START, 0, {"requests": [9.0]}) == 2


def test_the_target_of_an_external_scaler_is_not_in_the_manifest() -> None:
    one = keda(("triggers.0", trigger("external-push", "in_flight", scalerAddress="a")))
    with pytest.raises(ValueError, match="in_flight"):
        one.metrics(START, 1, {"in_flight": [9.0]})
