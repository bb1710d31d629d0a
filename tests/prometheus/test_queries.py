"""Every query and rule of the bundle on a real Prometheus: with two pods, one, none, and right after the start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from tests.prometheus.expressions import NAMESPACE, SERVICE, Expression, collect
from tests.prometheus.promql import durations, shorten
from tests.prometheus.server import Sample
from tests.prometheus.world import FACTOR, PODS, RECORD, World

Faults = list[str]


def ask(world: World, one: Expression, at: float) -> list[Sample]:
    return world.prometheus.query(shorten(one.text, FACTOR), at)


def broken_promises(
    world: World, moments: Iterable[float], num_pods: int, expressions: Sequence[Expression] | None = None
) -> Faults:
    """Expressions that do not have the finite samples that they promise at one of the moments."""
    faults = []
    for one in collect() if expressions is None else expressions:
        wanted = {"one": 1, "one a pod": num_pods, "any": None}[one.promise]
        for at in moments:
            samples = ask(world, one, at)
            if wanted is not None and (len(samples) != wanted or not all(sample.is_finite for sample in samples)):
                faults.append(f"{one}: {samples} at {at:.1f}\n    {one.text}")
                break
    return faults


def test_K4_two_pods_give_each_query_one_finite_sample(world: World) -> None:
    assert not broken_promises(world, world.two[::2], 2)


@pytest.mark.parametrize(
    "text",
    [
        'pagedserve_requests_waiting{namespace="default"}',
        "sum by (pod) (pagedserve_requests_waiting)",
        "sum(rate(pagedserve_requests_rejected_total[5m])) / sum(rate(pagedserve_requests_rejected_total[5m]))",
        'sum(pagedserve_requests_waiting{namespace="other"})',
    ],
    ids=["unaggregated", "by pod", "not a number", "empty"],
)
def test_the_check_of_promises_can_fail(world: World, text: str) -> None:
    assert broken_promises(world, world.two[-1:], 2, [Expression("", "scaler", text, "one")])


def test_one_pod_gives_each_query_one_finite_sample(world: World) -> None:
    # The exporters' pages still list both pods, as kube-state-metrics does for a while.
    assert not broken_promises(world, world.one[::2], 2)


def test_a_pod_that_died_unnoticed_gives_each_query_one_finite_sample(world: World) -> None:
    assert not broken_promises(world, [world.lost], 2)


def test_right_after_the_first_scrape_each_query_has_one_finite_sample(world: World) -> None:
    # NOTE: a rule over others has its sample one evaluation later than they have.
    (num_pods,) = world.prometheus.query(RECORD, world.next)
    assert not broken_promises(world, [world.next], int(num_pods.value))


def test_without_pods_the_queries_say_what_their_overlay_decided(world: World) -> None:
    """No series is no sample, never a 0 that would read as idle; what KEDA makes of it is `ignoreNullValues`."""
    at, faults = world.none[-1], []
    for one in (e for e in collect() if e.kind in {"scaler", "adapter"} and "pagedserve_" in e.text):
        expected = [0.0] if "vector(0)" in one.text else []
        if [sample.value for sample in ask(world, one, at)] != expected:
            faults.append(f"{one}: {ask(world, one, at)}")
    assert not faults


def test_without_pods_gauges_have_no_sample_and_rates_one_at_most(world: World) -> None:
    at, faults = world.none[-1], []
    for one in (e for e in collect() if e.kind == "record"):
        samples = ask(world, one, at)
        is_gauge = not durations(one.text) and "rate5m" not in one.text
        if len(samples) > (0 if is_gauge else 1) or not all(sample.is_finite for sample in samples):
            faults.append(f"{one}: {samples}")
    assert not faults


def test_recorded_series_exist_once_a_service(world: World) -> None:
    for one in (e for e in collect() if e.kind == "record"):
        (sample,) = world.prometheus.query(one.name, world.two[-1])
        labels = {key: value for key, value in sample.labels.items() if key != "__name__"}
        assert labels == {"namespace": NAMESPACE, "inferenceservice": SERVICE}, one


def test_values_are_those_of_the_load(world: World) -> None:
    def value(name: str) -> float:
        (sample,) = world.prometheus.query(name, world.two[-1])
        return sample.value

    assert value("inferenceservice:pagedserve_replicas:count") == 2
    assert value("inferenceservice:pagedserve_engines_up:sum") == 2
    assert value("inferenceservice:pagedserve_requests:rate5m") > 0
    assert value("inferenceservice:pagedserve_generation_tokens:rate5m") > 0
    assert value("inferenceservice:pagedserve_errors:ratio_rate5m") == 0
    assert 0 <= value("inferenceservice:pagedserve_first_token_slow:ratio_rate5m") < 0.05


def test_every_rule_is_evaluated_without_error(world: World) -> None:
    rules = [rule for group in world.rules["groups"] for rule in group["rules"]]
    assert len(rules) == sum(e.kind in {"record", "alert"} for e in collect())
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


def test_no_alert_in_health(world: World) -> None:
    for at in world.two:
        assert world.prometheus.query("ALERTS", at) == []


def test_a_dead_pod_raises_exactly_the_alert_on_its_scrape(world: World) -> None:
    alerts = {(a["labels"]["alertname"], a["labels"]["pod"]) for a in world.lost_alerts["alerts"]}
    # Its container is still `running` to kube-state-metrics here, so that its metrics are missed as well.
    assert alerts - {("PagedServeMetricsAbsent", PODS[1])} == {("PagedServeScrapeFailed", PODS[1])}


def test_the_podmonitor_finds_the_rest_port_of_our_pods_only(world: World) -> None:
    ours = [t for t in world.targets["activeTargets"] if t["scrapePool"].startswith("podMonitor/")]
    assert sorted(t["labels"]["pod"] for t in ours) == list(PODS)
    for target in ours:
        expected = {
            "namespace": NAMESPACE,
            "inferenceservice": SERVICE,
            "container": "kserve-container",
            "job": "monitoring/pagedserve",
        }
        assert expected.items() <= target["labels"].items()
        assert target["health"] == "up"
    dropped = [t["discoveredLabels"] for t in world.targets["droppedTargets"]]
    dropped = [labels for labels in dropped if labels["job"] == "podMonitor/monitoring/pagedserve/0"]  # the port http
    assert {(d["__meta_kubernetes_pod_name"], d["__meta_kubernetes_pod_container_port_name"]) for d in dropped} == {
        ("neighbour", "http"),
        *((pod, "h2c-grpc") for pod in PODS),
    }
