"""Cases K, played out on the manifests as they are; beside each the naive manifest that fails it."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from autoscaling.hpa import ExternalMetric, PodsMetric
from autoscaling.keda import Answer
from autoscaling.keda_spec import ScaledObject
from autoscaling.play import play_hpa, play_keda
from tests.manifests.keda import BASE, HPAS, OVERLAY, SCALED_OBJECTS, scaled_object, spec
from tests.manifests.kustomize import build, one

Answers = Mapping[str, Answer]

LOST, DOWN = [], None
"""Prometheus answers with nothing (it lost its targets); Prometheus does not answer."""
LOAD_SECONDS = 180


def demand(made: ScaledObject, requests: float, kv_usage: float, replicas: int) -> Answers:
    """What the triggers of a ScaledObject answer, all pods ready, nothing waiting at the gateway."""
    values = {"requests": requests, "kv_usage": kv_usage, "ready": replicas, "in_flight": requests, "gateway_queue": 0}
    return {t.name: [float(values[t.name])] for t in made.triggers if t.window is None}


def through_prometheus(made: ScaledObject, answers: Answers, answer: Answer) -> Answers:
    """The same with every Prometheus query answered otherwise; the interceptor goes on counting."""
    return {name: given if name == "in_flight" else answer for name, given in answers.items()}


def naive(**metadata: str) -> ScaledObject:
    """As published examples have it: KEDA's defaults, and scale-in without a window."""
    document = copy.deepcopy(scaled_object(BASE))
    document["spec"] |= {"minReplicaCount": 1, "maxReplicaCount": 5}
    document["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] = {
        "scaleDown": {"stabilizationWindowSeconds": 0}
    }
    del document["spec"]["fallback"]
    for trigger in document["spec"]["triggers"]:
        trigger["metadata"] = {**trigger["metadata"], "ignoreNullValues": "true", **metadata}
    return ScaledObject.of(document)


def changes(trace: list[int]) -> list[int]:
    """The replicas after each change, the first included."""
    return trace[:1] + [b for a, b in itertools.pairwise(trace) if a != b]


# --- K1 ---


@pytest.mark.parametrize("loss", [LOST, DOWN], ids=["targets lost", "Prometheus down"])
@pytest.mark.parametrize("path", SCALED_OBJECTS)
def test_K1_prometheus_is_lost_at_the_peak(path: str, loss: Answer) -> None:
    made = spec(path)

    def answers(second: int, replicas: int) -> Answers:
        peak = demand(made, 8 * 48, 8 * 80, replicas)
        return peak if second < 300 else through_prometheus(made, peak, loss)

    trace = play_keda(made, answers, seconds=2 * 3600, replicas=8)
    assert set(trace) == {8}


@pytest.mark.parametrize("path", [path for path in SCALED_OBJECTS if spec(path).min_replicas > 0])
def test_K1_a_blind_service_goes_to_the_fallback_not_the_minimum(path: str) -> None:
    made = spec(path)
    assert made.fallback is not None
    trace = play_keda(made, lambda s, n: dict.fromkeys(demand(made, 0, 0, n), LOST), seconds=3600, replicas=2)
    assert trace[-1] == made.fallback.replicas > made.min_replicas
    assert changes(trace) == [2, made.fallback.replicas]
    # After the fourth failure, at the fourth sync from 0.
    assert trace.index(made.fallback.replicas) == made.fallback.failure_threshold * 15


def test_K1_the_naive_manifest_goes_to_the_minimum() -> None:
    made = naive()

    def answers(second: int, replicas: int) -> Answers:
        peak = demand(made, 5 * 48, 5 * 80, replicas)
        return peak if second < 300 else through_prometheus(made, peak, LOST)

    assert play_keda(made, answers, seconds=600, replicas=5)[-1] == 1


def test_K1_a_static_fallback_would_cut_the_peak() -> None:
    made = spec(BASE)
    assert made.fallback is not None
    static = dataclasses.replace(made, fallback=dataclasses.replace(made.fallback, behavior="static"))
    trace = play_keda(static, lambda s, n: dict.fromkeys(demand(made, 0, 0, n), LOST), seconds=7200, replicas=8)
    assert trace[-1] == 4


@pytest.mark.parametrize("path", HPAS)
def test_K1_an_hpa_without_metrics_holds(path: str) -> None:
    hpa = one(build(path), "HorizontalPodAutoscaler")["spec"]
    pods = {f"pod-{i}": True for i in range(8)}
    lost = [ExternalMetric(None, 48) if m["type"] == "External" else PodsMetric({}, pods, 60) for m in hpa["metrics"]]
    assert set(play_hpa(hpa, lambda s, n: lost, seconds=3600, replicas=8)) == {8}


# --- K2 ---


@pytest.mark.parametrize("failure", [LOST, DOWN], ids=["empty", "no answer"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("path", [path for path in SCALED_OBJECTS if spec(path).min_replicas > 0])
def test_K2_queries_that_fail_now_and_then_move_nothing(path: str, share: float, failure: Answer) -> None:
    made, draw = spec(path), random.Random(7)

    def answers(second: int, replicas: int) -> Answers:
        good = demand(made, 5 * 48, 3 * 80, replicas)
        return {name: failure if draw.random() < share else given for name, given in good.items()}

    # A steady demand of five replicas, which is more than the fallback's four.
    assert set(play_keda(made, answers, seconds=2 * 3600, replicas=5)) == {5}


def test_K2_outages_of_minutes_do_not_swing() -> None:
    made = spec(BASE)

    def answers(second: int, replicas: int) -> Answers:
        good = demand(made, 2 * 48, 80, replicas)
        return dict.fromkeys(good, DOWN) if second % 900 < 300 else good

    # Five minutes in fifteen are blind: up to the fallback, and at most one pod back before the next outage.
    trace = play_keda(made, answers, seconds=4 * 3600, replicas=2)
    assert set(trace[60:]) <= {3, 4}
    assert len(changes(trace)) <= 2 + 2 * 16


def test_K2_the_naive_manifest_swings_between_1_and_5() -> None:
    made, draw = naive(), random.Random(7)

    def answers(second: int, replicas: int) -> Answers:
        good = demand(made, 5 * 48, 3 * 80, replicas)
        return dict.fromkeys(good, LOST) if draw.random() < 0.5 else good

    seen = changes(play_keda(made, answers, seconds=3600, replicas=5))
    assert seen.count(1) > 10
    assert seen.count(5) > 10


def test_queue_noise_moves_nothing() -> None:
    made, draw = spec(BASE), random.Random(7)
    # Within the HPA's tolerance of ten percent around three replicas' demand.
    trace = play_keda(
        made, lambda s, n: demand(made, 3 * 48 * draw.uniform(0.91, 1.09), 100, n), seconds=7200, replicas=3
    )
    assert set(trace) == {3}


# --- K3 ---

ZERO = {f"{OVERLAY}scale-to-zero": "in_flight", f"{OVERLAY}scale-to-zero-gateway": "gateway_queue"}


def at_zero(path: str, made: ScaledObject) -> Answers:
    """What the triggers answer while there is no pod."""
    # NOTE: where a query asks kube-state-metrics how many pods are ready, its answer at none is 0.
    counted = "kube_deployment" in str(scaled_object(path)["spec"]["triggers"])
    return {**dict.fromkeys([t.name for t in made.triggers], [0.0] if counted else LOST), ZERO[path]: [0.0]}


@pytest.mark.parametrize("path", ZERO)
def test_K3_woken_by_a_signal_without_pods(path: str) -> None:
    made = spec(path)
    asked, loaded, over = 600, 600 + LOAD_SECONDS, 1800

    def answers(second: int, replicas: int) -> Answers:
        waiting = {ZERO[path]: [10.0]} if asked <= second < over else {}
        if replicas == 0 or second < loaded:
            return {**at_zero(path, made), **waiting}
        busy = 10.0 if second < over else 0.0
        return {**demand(made, busy, busy, replicas), ZERO[path]: [busy if ZERO[path] == "in_flight" else 0.0]}

    trace = play_keda(made, answers, seconds=3600, replicas=0, last_active=-3600)
    assert changes(trace) == [0, 1, 0]
    assert asked <= trace.index(1) < asked + made.polling_seconds
    # Idle at 1800, and gone a cooldown later, not before; a cooldown is worth several loads.
    assert min(made.cooldown_seconds, made.initial_cooldown_seconds) >= 3 * LOAD_SECONDS
    gone = over + made.cooldown_seconds
    assert trace[gone - 1] == 1
    assert trace[gone + made.polling_seconds + 1] == 0


def test_K3_the_pods_own_metrics_wake_nobody() -> None:
    made = dataclasses.replace(spec(BASE), min_replicas=0)
    assert set(play_keda(made, lambda s, n: {}, seconds=3600, replicas=0)) == {0}


@pytest.mark.parametrize("path", ZERO)
def test_K3_a_long_stream_keeps_its_pod(path: str) -> None:
    made = spec(path)
    trace = play_keda(made, lambda s, n: demand(made, 1, 1, n), seconds=4 * 3600, replicas=1)
    assert set(trace) == {1}


@pytest.mark.parametrize("path", ZERO)
def test_K3_no_answer_at_zero_wakes_nobody_either(path: str) -> None:
    made = spec(path)
    down = {**at_zero(path, made), "requests": DOWN, "kv_usage": DOWN}
    assert set(play_keda(made, lambda s, n: down, seconds=3600, replicas=0)) == {0}


# --- how fast ---


def backlog(made: ScaledObject) -> Callable[[int, int], Answers]:
    """A queue that grows faster than any pod serves it; pods are ready LOAD_SECONDS after they are asked for."""
    asked: list[tuple[int, int]] = []

    def answers(second: int, replicas: int) -> Answers:
        asked.append((second, replicas))
        ready = max([2, *(n for since, n in asked if since <= second - LOAD_SECONDS)])
        return {**demand(made, 500 + 10 * second, 8 * 80 * 0.1, replicas), "ready": [float(ready)]}

    return answers


@pytest.mark.parametrize("path", [BASE, f"{OVERLAY}scaling-modifiers"])
def test_pods_come_no_faster_than_they_load(path: str) -> None:
    made = spec(path)
    trace = play_keda(made, backlog(made), seconds=900, replicas=2)
    # Doubled at once, and again when the first are there; the backlog would have had all eight at once.
    assert changes(trace) == [4, 8]
    assert LOAD_SECONDS <= trace.index(8) <= LOAD_SECONDS + 15


def test_a_backlog_without_damping_takes_everything_at_once() -> None:
    made = dataclasses.replace(naive(), max_replicas=8)
    trace = play_keda(made, backlog(made), seconds=60, replicas=2)
    assert trace[16] == 8


@pytest.mark.parametrize("path", [BASE, f"{OVERLAY}scaling-modifiers"])
def test_scale_in_is_slow_and_one_at_a_time(path: str) -> None:
    made = spec(path)
    trace = play_keda(made, lambda s, n: demand(made, 8 * 48 if s < 300 else 0, 10, n), seconds=3600, replicas=8)
    assert changes(trace) == [8, 7, 6, 5, 4, 3, 2]
    first = trace.index(7)
    assert 300 + made.behavior.down.window_seconds - 15 <= first <= 300 + made.behavior.down.window_seconds + 15
    assert [trace.index(n) - first for n in (6, 5, 4, 3, 2)] == [180, 360, 540, 720, 900]


def test_either_signal_scales_out_alone() -> None:
    made = spec(BASE)
    by_requests = play_keda(made, lambda s, n: demand(made, 4 * 48, 20, n), seconds=600, replicas=2)
    by_kv_usage = play_keda(made, lambda s, n: demand(made, 20, 4 * 80, n), seconds=600, replicas=2)
    assert by_requests[-1] == by_kv_usage[-1] == 4


# --- the school ---


def test_the_school_has_eight_replicas_from_five_minutes_before_until_ten_minutes_after() -> None:
    made = spec(f"{OVERLAY}scheduled")
    shanghai = ZoneInfo("Asia/Shanghai")
    start = datetime(2026, 11, 30, 7, 30, tzinfo=shanghai)  # a Monday

    def second(hour: int, minute: int) -> int:
        return int((datetime(2026, 11, 30, hour, minute, tzinfo=shanghai) - start).total_seconds())

    trace = play_keda(made, lambda s, n: demand(made, 10, 10, n), seconds=second(17, 0), replicas=2, start=start)
    assert set(trace[: second(7, 55)]) == {2}
    assert trace[second(7, 55)] == 8
    # All of them are asked for at once, so that they are ready when lessons begin.
    assert trace.index(8) + LOAD_SECONDS < second(8, 0)
    assert set(trace[second(7, 55) : second(16, 40) - 15]) == {8}
    assert set(trace[second(16, 40) + 15 :]) == {2}


def test_the_school_is_closed_on_saturdays() -> None:
    made = spec(f"{OVERLAY}scheduled")
    start = datetime(2026, 12, 5, 7, 30, tzinfo=ZoneInfo("Asia/Shanghai"))  # until half past eight
    trace = play_keda(made, lambda s, n: demand(made, 10, 10, n), seconds=3600, replicas=2, start=start)
    assert set(trace) == {2}


def test_the_school_is_open_from_monday_to_friday() -> None:
    (window,) = [t.window for t in spec(f"{OVERLAY}scheduled").triggers if t.window is not None]
    sunday = datetime(2026, 11, 29, 12, 0, tzinfo=ZoneInfo("Asia/Shanghai"))
    week = [window.is_active(sunday + timedelta(days=day)) for day in range(7)]
    assert week == [False, True, True, True, True, True, False]
    # KEDA passes over a start that no end follows before the next start; it would be a mistake that shows nowhere.
    assert window.start.weekdays == window.end.weekdays == frozenset(range(1, 6))


def test_lessons_have_headroom() -> None:
    made = spec(f"{OVERLAY}scheduled")
    start = datetime(2026, 11, 30, 9, 0, tzinfo=ZoneInfo("Asia/Shanghai"))
    trace = play_keda(made, lambda s, n: demand(made, 10 * 48, 10, n), seconds=600, replicas=8, start=start)
    assert trace[-1] == 10


# --- the GPU's utilisation ---


def test_gpu_utilisation_pins_at_the_maximum() -> None:
    hpa = one(build(f"{OVERLAY}hpa-dcgm"), "HorizontalPodAutoscaler")["spec"]

    def metrics(second: int, replicas: int) -> list[PodsMetric]:
        # One stream in each pod keeps every GPU at 95 %, though one pod could serve them all.
        pods = [f"pod-{i}" for i in range(replicas)]
        return [PodsMetric(dict.fromkeys(pods, 95.0), dict.fromkeys(pods, True), 60)]

    assert play_hpa(hpa, metrics, seconds=3600, replicas=2)[-1] == 8
    made = spec(BASE)
    assert play_keda(made, lambda s, n: demand(made, 8, 5, n), seconds=3600, replicas=2)[-1] == 2
