"""What KEDA takes and production does not: our rules about the signals of a ScaledObject.

Each stands for a published failure: a query that fails at two pods, a lost Prometheus read as no load, a model at zero
that nothing can wake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoscaling.keda_rules import RESOURCE_TRIGGERS
from autoscaling.keda_spec import DEFAULT_MAX_REPLICAS, is_whole_number
from autoscaling.promql import Selector, one_sample_problem, outer_aggregations, selectors

Document = Mapping[str, Any]

OWN_PREFIX = "pagedserve_"
"""Metrics that the pods themselves export, and so none without pods."""
POD_COUNT = "kube_deployment_status_replicas"
"""kube-state-metrics' count, by which a query can tell no pods from lost targets."""


def signal_problems(document: Document) -> list[str]:
    """Faults of a ScaledObject whose metadata `keda_rules` accepts."""
    return [problem for rule in _RULES for problem in rule(document)]


def prometheus_triggers(document: Document) -> list[Document]:
    """Those of type prometheus."""
    return [trigger for trigger in document["spec"]["triggers"] if trigger["type"] == "prometheus"]


def _one_sample(document: Document) -> Iterator[str]:
    for trigger in prometheus_triggers(document):
        if problem := one_sample_problem(trigger["metadata"]["query"]):
            yield f"{_title(trigger)}: the query {problem}"


def _totals(document: Document) -> Iterator[str]:
    """AverageValue divides by the replicas, so it wants a total. A mean of ratios pins at two."""
    for trigger in prometheus_triggers(document):
        if trigger.get("metricType", "AverageValue") == "AverageValue" and _selectors(trigger):
            means = outer_aggregations(trigger["metadata"]["query"]) - {"sum", "count"}
            if means:
                yield f"{_title(trigger)}: AverageValue needs a total over the pods, not {', '.join(sorted(means))}"


def _selection(document: Document) -> Iterator[str]:
    """Each selector names a namespace and what in it is meant; without, it counts other services' load."""
    for trigger in prometheus_triggers(document):
        for selector in _selectors(trigger):
            if "namespace" not in selector.matchers:
                yield f"{_title(trigger)}: {selector.metric} is not selected by namespace"
            if (selector.metric or "").startswith(OWN_PREFIX) and "inferenceservice" not in selector.matchers:
                yield f"{_title(trigger)}: {selector.metric} is not selected by inferenceservice"


def _loss_is_not_idle(document: Document) -> Iterator[str]:
    """Where there are always pods an empty answer is a lost target, and must lead to the fallback."""
    spec = document["spec"]
    if spec.get("minReplicaCount", 0) == 0:
        return
    if prometheus_triggers(document) and "fallback" not in spec:
        yield "no fallback: a Prometheus that is lost holds the replicas where they are, or lets them fall"
    for trigger in prometheus_triggers(document):
        if trigger["metadata"].get("ignoreNullValues", "true") == "true":
            yield f"{_title(trigger)}: ignoreNullValues is true, so that lost targets read as no demand"
        if "or vector(" in " ".join(trigger["metadata"]["query"].split()):
            yield f"{_title(trigger)}: `or vector(...)` makes lost targets read as no demand"


def _holds(document: Document) -> Iterator[str]:
    """Where its fallback is 0 replicas, KEDA takes a service whose triggers fail to 0 (RequestScale)."""
    fallback = document["spec"].get("fallback")
    if fallback is not None and fallback["replicas"] == 0 and document["spec"].get("minReplicaCount", 0) == 0:
        yield "fallback.replicas is 0: with its triggers failing the service is cut to 0 after cooldownPeriod"


def _whole_targets(document: Document) -> Iterator[str]:
    """KEDA before 2.17 cuts a target off to a whole number in its fallback, and 0.8 to 0."""
    if "fallback" not in document["spec"]:
        return
    for trigger in prometheus_triggers(document):
        if not is_whole_number(trigger["metadata"]["threshold"]):
            yield (
                f"{_title(trigger)}: threshold {trigger['metadata']['threshold']} is no whole number; "
                "give the query in percent, so that the fallback is exact in every KEDA"
            )


def _wakes(document: Document) -> Iterator[str]:
    if document["spec"].get("minReplicaCount", 0) == 0 and not any(map(_is_there_without_pods, _triggers(document))):
        yield "minReplicaCount is 0 and every trigger reads the pods' own metrics: nothing would ever wake them"


def _idle_at_zero(document: Document) -> Iterator[str]:
    """At 0 pods their own metrics are absent; that has to be idle, or the fallback starts pods when the first loads."""
    if document["spec"].get("minReplicaCount", 0) != 0:
        return
    for trigger in prometheus_triggers(document):
        strict = trigger["metadata"].get("ignoreNullValues", "true") == "false"
        told_apart = any((s.metric or "").startswith(POD_COUNT) for s in _selectors(trigger))
        if strict and not told_apart and not _is_there_without_pods(trigger):
            yield f"{_title(trigger)}: ignoreNullValues is false, and without pods every look at it is an error"


def _headroom(document: Document) -> Iterator[str]:
    """A schedule at the maximum leaves the signals nothing to add, and the alert on the maximum is on all day."""
    maximum = document["spec"].get("maxReplicaCount", DEFAULT_MAX_REPLICAS)
    for trigger in _triggers(document):
        if trigger["type"] == "cron" and int(trigger["metadata"]["desiredReplicas"]) >= maximum:
            yield f"{_title(trigger)}: desiredReplicas reaches maxReplicaCount {maximum}"


_RULES = (
    _one_sample,
    _totals,
    _selection,
    _loss_is_not_idle,
    _holds,
    _whole_targets,
    _wakes,
    _idle_at_zero,
    _headroom,
)


def _is_there_without_pods(trigger: Document) -> bool:
    if trigger["type"] in RESOURCE_TRIGGERS:
        return False
    if trigger["type"] != "prometheus":
        return True
    return not any((selector.metric or "").startswith(OWN_PREFIX) for selector in _selectors(trigger))


def _triggers(document: Document) -> list[Document]:
    triggers: list[Document] = document["spec"]["triggers"]
    return triggers


def _selectors(trigger: Document) -> list[Selector]:
    try:
        return selectors(trigger["metadata"]["query"])
    except ValueError:
        return []


def _title(trigger: Document) -> str:
    return f"trigger {trigger.get('name') or trigger['type']}"
