from __future__ import annotations

import pytest

from autoscaling.behavior import Behavior
from autoscaling.hpa import ExternalMetric, Hpa, PodsMetric

AT_ONCE = {"scaleUp": {"stabilizationWindowSeconds": 0}, "scaleDown": {"stabilizationWindowSeconds": 0}}


def hpa(behavior: dict[str, object] | None = None, low: int = 1, high: int = 20) -> Hpa:
    return Hpa(low, high, Behavior.of(behavior or AT_ONCE))


@pytest.mark.parametrize(
    ("current", "value", "target", "wish"),
    [
        (2, 96, 48, 2),  # just at the target
        (2, 105, 48, 2),  # 9.4 % above: within the tolerance
        (2, 106, 48, 3),  # 10.4 % above
        (2, 87, 48, 2),  # 9.4 % below
        (2, 86, 48, 2),  # 10.4 % below: 1.8 replicas, so 2
        (3, 120, 48, 3),  # 2.5 replicas
        (3, 96, 48, 2),
        (1, 480, 48, 10),
        (5, 0, 48, 0),
        (3, 2.4, 0.8, 3),  # thousandths: 2.4 / 0.8 in floats is more than 3
        (1, 240, 80, 3),
    ],
)
def test_an_average_value_is_the_total_by_the_target(current: int, value: float, target: float, wish: int) -> None:
    assert hpa().wish(current, [ExternalMetric(value, target)]) == wish


def test_a_mean_as_average_value_pins_at_two_replicas() -> None:
    # Full caches everywhere, and a mean of at most 1 against 0.8: 1.25 replicas, for ever.
    for current in (1, 2, 8):
        assert hpa().wish(current, [ExternalMetric(1.0, 0.8)]) == 2
    # The sum asks for what is missing.
    assert hpa().wish(8, [ExternalMetric(8.0, 0.8)]) == 10


def test_a_value_multiplies_the_replicas() -> None:
    assert hpa().wish(4, [ExternalMetric(150, 100, "Value")]) == 6
    assert hpa().wish(4, [ExternalMetric(105, 100, "Value")]) == 4


@pytest.mark.parametrize(
    ("current", "values", "wish"),
    [
        (3, [96, 240], 5),  # the larger demand
        (3, [96, None], None),  # one fails and the other would scale in: nothing is done
        (3, [480, None], 10),  # one fails and the other scales out
        (3, [None, None], None),
    ],
)
def test_several_metrics(current: int, values: list[float | None], wish: int | None) -> None:
    assert hpa().wish(current, [ExternalMetric(value, 48) for value in values]) == wish


def test_bounds_hold_whatever_the_metrics() -> None:
    assert hpa(low=2, high=8).sync(0, 1, []) == 2
    assert hpa(low=2, high=8).sync(0, 9, []) == 8
    assert hpa(low=2, high=8).sync(0, 8, [ExternalMetric(4800, 48)]) == 8
    assert hpa(low=2, high=8).sync(0, 3, [ExternalMetric(0, 48)]) == 2


def test_zero_replicas_turn_it_off() -> None:
    assert hpa().sync(0, 0, [ExternalMetric(4800, 48)]) == 0


def test_scale_in_waits_for_the_highest_wish_of_its_window() -> None:
    one = hpa({"scaleDown": {"stabilizationWindowSeconds": 60}})
    trace = [one.sync(t, 4, [ExternalMetric(192 if t <= 15 else 48, 48)]) for t in range(0, 91, 15)]
    # The wish of 4 is last uttered at 15 and leaves the window of 60 s at 75.
    assert trace == [4, 4, 4, 4, 4, 1, 1]


def test_scale_out_waits_for_the_lowest_wish_of_its_window() -> None:
    one = hpa({"scaleUp": {"stabilizationWindowSeconds": 60}})
    trace = [one.sync(t, 1, [ExternalMetric(48 if t <= 15 else 96, 48)]) for t in range(0, 91, 15)]
    assert trace == [1, 1, 1, 1, 1, 2, 2]


def test_a_restarted_controller_scales_nothing_in_at_once() -> None:
    assert hpa({"scaleDown": {"stabilizationWindowSeconds": 60}}).sync(1000, 6, [ExternalMetric(48, 48)]) == 6


def test_policies_count_what_it_has_done_itself() -> None:
    one = hpa({"scaleUp": {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 180}]}})
    replicas, trace = 1, []
    for second in range(0, 541, 15):
        replicas = one.sync(second, replicas, [ExternalMetric(4800, 48)])
        trace.append(replicas)
    assert [trace.index(n) * 15 for n in (2, 4, 8)] == [0, 180, 360]


PODS = {"a": True, "b": True, "c": True, "d": True}


@pytest.mark.parametrize(
    ("samples", "ready", "wish"),
    [
        ({"a": 60, "b": 60, "c": 60, "d": 60}, PODS, 4),  # at the target
        ({"a": 100, "b": 100, "c": 100, "d": 100}, PODS, 7),  # 100 / 60 of 4
        ({"a": 30, "b": 30, "c": 30, "d": 30}, PODS, 2),
        ({"a": 30, "b": 30}, PODS, 3),  # scaling in, c and d count as at the target: 45 / 60 of 4
        ({"a": 55, "b": 40}, PODS, 4),  # (55 + 40 + 60 + 60) / 4: within the tolerance
        ({"a": 100, "b": 100, "c": 100}, PODS, 5),  # scaling out, d counts as 0: 75 / 60 of 4
        ({"a": 65, "b": 75}, PODS, 4),  # with zeros it would scale in: the direction turns, nothing is done
        ({"a": 100, "b": 100, "c": 100}, {**PODS, "d": False}, 5),  # d loads and counts as 0
        ({"a": 100, "b": 100, "c": 100, "d": 0}, {**PODS, "d": False}, 5),  # whatever it says itself
        ({"a": 30, "b": 30, "c": 30}, {**PODS, "d": False}, 2),  # scaling in, what loads does not count
        ({"z": 100}, PODS, None),  # the sample of a pod that is gone
        ({"d": 100}, {**PODS, "d": False}, None),  # nothing known of a ready pod
        ({}, PODS, None),
    ],
)
def test_pods_metric_with_absent_and_loading_pods(
    samples: dict[str, float], ready: dict[str, bool], wish: int | None
) -> None:
    assert hpa().wish(4, [PodsMetric(samples, ready, 60)]) == wish
