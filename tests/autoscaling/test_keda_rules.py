"""Each rule with what breaks it; `None` where KEDA has nothing against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoscaling.keda_rules import keda_problems
from tests.autoscaling.scaled_objects import GOOD, changed, trigger
from tests.missing import missing

SCHEMA = Path(__file__).parents[3] / "shared" / "crds" / "keda-scalers-schema.json"

META = "triggers.0.metadata"
SCHOOL = {"timezone": "Asia/Shanghai", "start": "55 7 * * 1-5", "end": "30 16 * * 1-5", "desiredReplicas": "8"}
MODIFIERS = {"formula": "100 * requests / 48", "target": "100"}


def faults(document: dict[str, Any], *beside: dict[str, Any], scalers: dict[str, Any] | None = None) -> str:
    return "\n".join(keda_problems(document, beside, scalers))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ([], None),
        # names
        ([(".metadata.name", "n" * 54)], None),  # keda-hpa- and 54 are 63
        ([(".metadata.name", "n" * 55)], "HPA's name"),
        ([(".metadata.name", "n" * 63), ("advanced.horizontalPodAutoscalerConfig.name", "n")], None),
        ([(".metadata.name", "n" * 64), ("advanced.horizontalPodAutoscalerConfig.name", "n")], "64 characters"),
        # replicas
        ([("minReplicaCount", 6)], "more than maxReplicaCount"),
        ([("minReplicaCount", 101), ("maxReplicaCount", None)], "more than maxReplicaCount 100"),
        ([("idleReplicaCount", 0)], None),
        ([("idleReplicaCount", 1)], "idleReplicaCount"),
        # triggers
        ([("triggers.-", trigger("cron", "requests", **SCHOOL))], "two triggers have the name 'requests'"),
        ([("triggers.-", {**trigger("cron", **SCHOOL), "useCachedMetrics": True})], "useCachedMetrics"),
        ([("triggers.0.useCachedMetrics", True)], None),
        ([("triggers.0.metricType", "Utilization")], "Utilization"),
        ([("triggers.0", trigger("cpu", value="60")), ("fallback", None), ("minReplicaCount", 0)], "from 0"),
        ([("triggers.0", trigger("cpu", value="60")), ("fallback", None)], None),
        # metadata
        ([(f"{META}.threshold", 10)], "strings; put quotes around threshold"),
        ([(f"{META}.ignoreNullValues", False)], "quotes around ignoreNullValues"),
        ([(f"{META}.serverAddress", None)], "needs serverAddress"),
        ([(f"{META}.query", "")], "needs query"),
        ([(f"{META}.threshold", None)], "needs threshold"),
        ([(f"{META}.threshold", "ten")], "threshold 'ten' is no number"),
        ([(f"{META}.threshold", "0")], "more than 0"),
        ([(f"{META}.activationThreshold", "none")], "activationThreshold 'none' is no number"),
        ([(f"{META}.ignoreNullValues", "no")], "neither 'true' nor 'false'"),
        ([("triggers.-", trigger("cron", **SCHOOL))], None),
        ([("triggers.-", trigger("cron", **{**SCHOOL, "timezone": ""}))], "needs timezone"),
        ([("triggers.-", trigger("cron", **{**SCHOOL, "timezone": "China/Beijing"}))], "no time zone"),
        ([("triggers.-", trigger("cron", **{**SCHOOL, "end": SCHOOL["start"]}))], "same schedule"),
        ([("triggers.-", trigger("cron", **{**SCHOOL, "start": "5 minutes before 8 am"}))], "no hour"),
        ([("triggers.-", trigger("cron", **{**SCHOOL, "desiredReplicas": "all"}))], "no whole number"),
        ([("triggers.-", trigger("external-push", interceptorRoute="llm"))], "needs scalerAddress"),
        # authentication
        ([(f"{META}.authModes", "bearer")], "needs an authenticationRef"),
        ([(f"{META}.authModes", "oath"), ("triggers.0.authenticationRef.name", "a")], "'oath'"),
        ([("triggers.0.authenticationRef.name", "a")], "no TriggerAuthentication a"),
        ([("triggers.0.authenticationRef", {"kind": "ClusterTriggerAuthentication", "name": "a"})], None),
        # scalingModifiers
        ([("advanced.scalingModifiers", MODIFIERS)], None),
        ([("advanced.scalingModifiers", {"target": "100"})], "needs a formula"),
        ([("advanced.scalingModifiers", {**MODIFIERS, "target": ""})], "target '' must be a number"),
        ([("advanced.scalingModifiers", {**MODIFIERS, "target": "-1"})], "target '-1' must be a number"),
        ([("advanced.scalingModifiers", {**MODIFIERS, "formula": "100 * requsts / 48"})], "'requsts'"),
        ([("advanced.scalingModifiers", {**MODIFIERS, "formula": "100 * (requests"})], "cannot be parsed"),
        ([("advanced.scalingModifiers", MODIFIERS), ("triggers.0.name", "all-requests")], "'requests'"),
        # fallback
        ([("advanced.scalingModifiers", {**MODIFIERS, "target": "0.8"})], "never engages"),
        ([("advanced.scalingModifiers", {**MODIFIERS, "target": "100.0"})], "never engages"),  # Go parses no integer
        ([("advanced.scalingModifiers", {**MODIFIERS, "target": "0.8"}), ("fallback", None)], None),
        ([("advanced.scalingModifiers", {**MODIFIERS, "metricType": "Value"})], "metricType AverageValue"),
        ([("triggers.0.metricType", "Value")], "at least one trigger"),
        ([("fallback.replicas", -1)], "replicas -1"),
        ([("fallback.failureThreshold", -1)], "failureThreshold -1"),
        # behaviour, which goes to the HPA as it is
        (
            [("advanced.horizontalPodAutoscalerConfig.behavior.scaleDown.stabilizationWindowSeconds", 3601)],
            "3601 is not between",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_rules(changes: list[tuple[str, Any]], named: str | None) -> None:
    found = faults(changed(*changes))
    assert not found if named is None else named in found


def hpa(name: str, target: str, **annotations: str) -> dict[str, Any]:
    return {
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}, "maxReplicas": 5},
    }


def isvc(name: str, autoscaler_class: str | None) -> dict[str, Any]:
    annotations = {} if autoscaler_class is None else {"serving.kserve.io/autoscalerClass": autoscaler_class}
    return {"kind": "InferenceService", "metadata": {"name": name, "annotations": annotations}, "spec": {}}


TAKES_OVER = [
    (".metadata.annotations", {"scaledobject.keda.sh/transfer-hpa-ownership": "true"}),
    ("advanced.horizontalPodAutoscalerConfig.name", "mine"),
]


@pytest.mark.parametrize(
    ("changes", "beside", "named"),
    [
        ([], hpa("mine", "llm-predictor"), "already managed by the HPA mine"),
        ([], hpa("mine", "other-predictor"), None),
        ([], hpa("mine", "llm-predictor", **{"validations.keda.sh/hpa-ownership": "false"}), None),
        (TAKES_OVER, hpa("mine", "llm-predictor"), None),
        (TAKES_OVER, hpa("another", "llm-predictor"), "already managed by the HPA another"),
        ([], changed((".metadata.name", "two")), "already managed by the ScaledObject two"),
        ([], changed((".metadata.name", "two"), ("scaleTargetRef.name", "other")), None),
        (
            [("advanced.horizontalPodAutoscalerConfig.name", "keda-hpa-two")],
            changed((".metadata.name", "two"), ("scaleTargetRef.name", "other")),
            "the HPA keda-hpa-two is already managed by the ScaledObject two",
        ),
        ([], isvc("llm", None), "is 'hpa' and must be 'external'"),  # KServe's default makes an HPA
        ([], isvc("llm", "keda"), "is 'keda' and must be 'external'"),  # KServe makes a ScaledObject itself
        ([], isvc("llm", "none"), "is 'none' and must be 'external'"),  # KServe sets the replicas back
        ([], isvc("llm", "external"), None),
        ([], isvc("other", "hpa"), None),
    ],
)
def test_one_owner_of_the_replicas(changes: list[tuple[str, Any]], beside: dict[str, Any], named: str | None) -> None:
    found = faults(changed(*changes), beside)
    assert not found if named is None else named in found


@pytest.mark.parametrize(
    ("mode", "parameters", "named"),
    [
        ("bearer", ["bearerToken", "ca"], None),
        ("bearer", ["ca"], "lacks bearerToken"),
        ("tls", ["ca", "cert", "key"], None),
        ("tls", ["ca", "cert"], "lacks key"),
        ("basic", ["username"], "lacks password"),
    ],
)
def test_what_an_authentication_has_to_hold(mode: str, parameters: list[str], named: str | None) -> None:
    authentication = {
        "kind": "TriggerAuthentication",
        "metadata": {"name": "prometheus"},
        "spec": {"secretTargetRef": [{"parameter": p, "name": "s", "key": p} for p in parameters]},
    }
    document = changed((f"{META}.authModes", mode), ("triggers.0.authenticationRef.name", "prometheus"))
    found = faults(document, authentication)
    assert not found if named is None else named in found


@pytest.fixture(scope="module")
def scalers() -> dict[str, Any]:
    if not SCHEMA.is_file():
        missing("KEDA's keda-scalers-schema.json is not at hand: there is no ../shared/crds")
    loaded: dict[str, Any] = json.loads(SCHEMA.read_text())
    return loaded


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ([], None),
        ([(f"{META}.timeout", "5s")], None),
        ([(f"{META}.treshold", "10")], "knows no metadata treshold"),
        ([(f"{META}.metricName", "gone-since-2.10")], "knows no metadata metricName"),
        ([("triggers.0.type", "promethius")], "no trigger of this type"),
        ([("triggers.-", trigger("cron", **SCHOOL))], None),
        ([("triggers.-", trigger("cron", **{**SCHOOL, "weekdays": "1-5"}))], "knows no metadata weekdays"),
        ([("triggers.-", trigger("kafka", topic="a"))], "needs bootstrapServers"),
    ],
)
def test_metadata_against_kedas_own_schema(
    scalers: dict[str, Any], changes: list[tuple[str, Any]], named: str | None
) -> None:
    found = faults(changed(*changes), scalers=scalers)
    assert not found if named is None else named in found


def test_the_good_one_is_left_as_it_is() -> None:
    assert changed() == GOOD
