"""Our own rules with what breaks them. K cases: failures that others have reported."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaling.signal_rules import signal_problems
from tests.autoscaling.scaled_objects import QUERY, changed, trigger

META = "triggers.0.metadata"
WAKER = trigger("external-push", "in_flight", scalerAddress="scaler:9090")
GATEWAY = trigger(
    "prometheus",
    "gateway",
    serverAddress="http://prometheus:9090",
    query='sum(gateway_queue{namespace="default"})',
    threshold="10",
    ignoreNullValues="true",
)
LESSONS = trigger("cron", "lessons", timezone="Asia/Shanghai", start="0 8 * * *", end="0 16 * * *", desiredReplicas="8")
ZERO = [("minReplicaCount", 0), (f"{META}.ignoreNullValues", "true")]
COUNTED = f"{QUERY} or sum(kube_deployment_status_replicas_ready{{namespace='default',deployment='d'}}) == 0"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ([], None),
        # K4: one sample
        ([(f"{META}.query", QUERY.replace("sum", ""))], "several series"),
        ([(f"{META}.query", QUERY.replace("sum", "sum by (pod)"))], "several series"),
        ([(f"{META}.query", "sum(")], "no PromQL"),
        # a total, which AverageValue divides
        ([(f"{META}.query", QUERY.replace("sum", "avg"))], "needs a total"),
        ([(f"{META}.query", f"100 * max({QUERY})")], "needs a total"),
        ([(f"{META}.query", f"sum({QUERY.replace('sum', 'avg')})")], None),
        ([(f"{META}.query", QUERY.replace("sum", "avg")), ("triggers.0.metricType", "Value")], None),
        # selected
        ([(f"{META}.query", "sum(pagedserve_requests_running)")], "not selected by namespace"),
        ([(f"{META}.query", 'sum(pagedserve_requests_running{namespace="a"})')], "not selected by inferenceservice"),
        ([(f"{META}.query", QUERY + ' + sum(up{job="a"})')], "up is not selected by namespace"),
        # K1: the loss of targets is not idleness
        ([(f"{META}.ignoreNullValues", "true")], "ignoreNullValues is true"),
        ([(f"{META}.ignoreNullValues", None)], "ignoreNullValues is true"),  # KEDA's default
        ([("fallback", None)], "no fallback"),
        ([(f"{META}.query", f"{QUERY} or  vector(0)")], "`or vector(...)`"),
        # K1: a fallback that engages
        ([(f"{META}.threshold", "0.8")], "no whole number"),
        ([(f"{META}.threshold", "0.8"), ("fallback", None)], "no fallback"),
        # a schedule below the maximum
        ([("maxReplicaCount", 8), ("triggers.-", LESSONS)], "desiredReplicas reaches maxReplicaCount 8"),
        ([("maxReplicaCount", 9), ("triggers.-", LESSONS)], None),
        # K3: waking from zero
        (ZERO, "nothing would ever wake them"),
        ([*ZERO, ("minReplicaCount", None)], "nothing would ever wake them"),  # the default is 0
        ([*ZERO, ("triggers.-", trigger("cpu", value="60"))], "nothing would ever wake them"),
        ([*ZERO, ("triggers.-", WAKER)], None),
        ([*ZERO, ("triggers.-", GATEWAY)], None),
        ([*ZERO, ("triggers.-", WAKER), ("fallback.replicas", 0)], "fallback.replicas is 0"),
        # K3: idle at zero
        ([("minReplicaCount", 0), ("triggers.-", WAKER)], "without pods every look at it is an error"),
        ([("minReplicaCount", 0), ("triggers.-", WAKER), (f"{META}.query", COUNTED)], None),
    ],
)
def test_rules(changes: list[tuple[str, Any]], named: str | None) -> None:
    found = "\n".join(signal_problems(changed(*changes)))
    assert not found if named is None else named in found
