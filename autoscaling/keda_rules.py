"""What KEDA 2.20 refuses in a ScaledObject: its admission webhook, and the parsers of the triggers used here.

The scalers would refuse their metadata only at run time, in a condition that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoscaling.cron import CronWindow
from autoscaling.formula import Formula
from autoscaling.hpa_rules import behavior_problems
from autoscaling.keda_spec import DEFAULT_MAX_REPLICAS, is_whole_number

Document = Mapping[str, Any]

MAX_LABEL_LENGTH = 63
RESOURCE_TRIGGERS = {"cpu", "memory"}
OWNERSHIP_EXEMPT = "validations.keda.sh/hpa-ownership"
TRANSFER_OWNERSHIP = "scaledobject.keda.sh/transfer-hpa-ownership"
KSERVE_CLASS = "serving.kserve.io/autoscalerClass"
NOT_IN_SCHEMA = {"authModes", "unsafeSsl"}
"""Metadata that the schema of the scalers leaves out, for it stands in a structure of its own."""
REQUIRED = {
    "prometheus": ("serverAddress", "query", "threshold"),
    "cron": ("timezone", "start", "end", "desiredReplicas"),
    "external-push": ("scalerAddress",),
}


def keda_problems(
    document: Document, beside: Sequence[Document] = (), scalers: Mapping[str, Any] | None = None
) -> list[str]:
    """Faults of a ScaledObject.

    beside: what else is applied in the namespace. scalers: KEDA's keda-scalers-schema.json, which tells the metadata of
    every trigger; without it only those in `REQUIRED` are checked.
    """
    return [
        *_name_problems(document),
        *_owner_problems(document, beside),
        *_replica_problems(document),
        *_trigger_problems(document),
        *_metadata_problems(document, scalers),
        *_authentication_problems(document, beside),
        *_modifier_problems(document),
        *_fallback_problems(document),
        *behavior_problems(_hpa_config(document).get("behavior", {})),
    ]


def hpa_name(document: Document) -> str:
    """The name of the HPA that KEDA makes."""
    name: str = _hpa_config(document).get("name") or f"keda-hpa-{document['metadata']['name']}"
    return name


def _hpa_config(document: Document) -> Document:
    config: Document = document["spec"].get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    return config


def _target(document: Document) -> tuple[str, str, str]:
    reference = document["spec"]["scaleTargetRef"]
    return reference.get("apiVersion", "apps/v1"), reference.get("kind", "Deployment"), reference["name"]


def _name_problems(document: Document) -> Iterator[str]:
    """verifyName: the name becomes a label's value, and the HPA's name after a prefix."""
    for what, name in (("name", document["metadata"]["name"]), ("the HPA's name", hpa_name(document))):
        if len(name) > MAX_LABEL_LENGTH:
            yield f"{what} {name!r} has {len(name)} characters, more than {MAX_LABEL_LENGTH}"


def _owner_problems(document: Document, beside: Sequence[Document]) -> Iterator[str]:
    """verifyHpas and verifyScaledObjects: one autoscaler a workload; and KServe, which would make one."""
    target, annotations = _target(document), document["metadata"].get("annotations", {})
    for other in beside:
        other_name, kind = other["metadata"]["name"], other["kind"]
        exempt = other["metadata"].get("annotations", {}).get(OWNERSHIP_EXEMPT) == "false"
        if kind == "HorizontalPodAutoscaler" and _target(other) == target and not exempt:
            taken_over = annotations.get(TRANSFER_OWNERSHIP) == "true" and hpa_name(document) == other_name
            if not taken_over:
                yield f"{target[2]} is already managed by the HPA {other_name}"
        if kind == "ScaledObject" and other_name != document["metadata"]["name"]:
            if _target(other) == target:
                yield f"{target[2]} is already managed by the ScaledObject {other_name}"
            if hpa_name(other) == hpa_name(document):
                yield f"the HPA {hpa_name(document)} is already managed by the ScaledObject {other_name}"
        if kind == "InferenceService" and target[2] == f"{other_name}-predictor":
            chosen = other["metadata"].get("annotations", {}).get(KSERVE_CLASS, "hpa")
            if chosen != "external":
                yield (
                    f"{target[2]} is managed by the InferenceService {other_name}: "
                    f"its annotation {KSERVE_CLASS} is {chosen!r} and must be 'external'"
                )


def _replica_problems(document: Document) -> Iterator[str]:
    """CheckReplicaCountBoundsAreValid."""
    spec = document["spec"]
    low, high = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", DEFAULT_MAX_REPLICAS)
    if low > high:
        yield f"minReplicaCount {low} is more than maxReplicaCount {high}"
    idle = spec.get("idleReplicaCount")
    if idle is not None and idle >= max(low, 1):
        yield f"idleReplicaCount {idle} must be less than minReplicaCount {low}"


def _trigger_problems(document: Document) -> Iterator[str]:
    """ValidateTriggers, and the metric types that a scaler takes (GetMetricTargetType)."""
    names = [trigger["name"] for trigger in document["spec"]["triggers"] if trigger.get("name")]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two triggers have the name {name!r}"
    for trigger in document["spec"]["triggers"]:
        if trigger.get("useCachedMetrics") and trigger["type"] in RESOURCE_TRIGGERS | {"cron"}:
            yield f"{_title(trigger)}: useCachedMetrics is not for {trigger['type']}"
        if trigger["type"] not in RESOURCE_TRIGGERS and trigger.get("metricType") == "Utilization":
            yield f"{_title(trigger)}: metricType Utilization is for cpu and memory only"
    if document["spec"].get("minReplicaCount", 0) == 0 and all(
        trigger["type"] in RESOURCE_TRIGGERS for trigger in document["spec"]["triggers"]
    ):
        yield "cpu and memory cannot scale to or from 0: give it another trigger or a minReplicaCount"


def _metadata_problems(document: Document, scalers: Mapping[str, Any] | None) -> Iterator[str]:
    known = {} if scalers is None else {scaler["type"]: scaler["parameters"] for scaler in scalers["scalers"]}
    for trigger in document["spec"]["triggers"]:
        kind, metadata, title = trigger["type"], trigger["metadata"], _title(trigger)
        if not_text := sorted(key for key, value in metadata.items() if not isinstance(value, str)):
            yield f"{title}: metadata values must be strings; put quotes around {', '.join(not_text)}"
            continue
        if scalers is not None and kind not in known:
            yield f"{title}: KEDA has no trigger of this type"
        needed = [p["name"] for p in known.get(kind, ()) if not p.get("optional") and "default" not in p]
        for name in sorted({*needed, *REQUIRED.get(kind, ())}):
            if not metadata.get(name) and f"{name}FromEnv" not in metadata:
                yield f"{title}: metadata needs {name}"
        if kind in {"prometheus", "cron"} and kind in known:
            allowed = {p["name"] for p in known[kind]} | NOT_IN_SCHEMA
            for name in sorted(metadata.keys() - allowed):
                yield f"{title}: {kind} knows no metadata {name}"
        yield from _value_problems(title, kind, metadata)


def _value_problems(title: str, kind: str, metadata: Mapping[str, str]) -> Iterator[str]:
    for name in ("threshold", "activationThreshold"):
        if name in metadata and not _is_number(metadata[name]):
            yield f"{title}: {name} {metadata[name]!r} is no number"
    if "threshold" in metadata and _is_number(metadata["threshold"]) and float(metadata["threshold"]) <= 0:
        yield f"{title}: threshold {metadata['threshold']} must be more than 0"
    if metadata.get("ignoreNullValues", "true") not in {"true", "false"}:
        yield f"{title}: ignoreNullValues {metadata['ignoreNullValues']!r} is neither 'true' nor 'false'"
    if kind == "cron" and not [name for name in REQUIRED["cron"] if not metadata.get(name)]:
        try:
            CronWindow.of(metadata["start"], metadata["end"], metadata["timezone"])
        except ValueError as error:
            yield f"{title}: {error}"
        if not metadata["desiredReplicas"].isdecimal():
            yield f"{title}: desiredReplicas {metadata['desiredReplicas']!r} is no whole number"


def _authentication_problems(document: Document, beside: Sequence[Document]) -> Iterator[str]:
    offered = {d["metadata"]["name"]: _parameters(d) for d in beside if d["kind"] == "TriggerAuthentication"}
    for trigger in document["spec"]["triggers"]:
        reference = trigger.get("authenticationRef")
        mode = trigger["metadata"].get("authModes")
        needed = {None: set(), "bearer": {"bearerToken"}, "tls": {"cert", "key"}, "basic": {"username", "password"}}
        if mode not in needed:
            yield f"{_title(trigger)}: authModes {mode!r} is none of bearer, tls, basic"
        elif reference is None:
            if mode is not None:
                yield f"{_title(trigger)}: authModes {mode} needs an authenticationRef"
        elif reference.get("kind", "TriggerAuthentication") == "TriggerAuthentication":
            if reference["name"] not in offered:
                yield f"{_title(trigger)}: there is no TriggerAuthentication {reference['name']}"
            elif absent := sorted(needed[mode] - offered[reference["name"]]):
                yield f"{_title(trigger)}: TriggerAuthentication {reference['name']} lacks {', '.join(absent)}"


def _parameters(authentication: Document) -> set[str]:
    spec = authentication["spec"]
    sources = ("secretTargetRef", "env", "configMapTargetRef", "boundServiceAccountToken")
    return {entry["parameter"] for source in sources for entry in spec.get(source, ())}


def _modifier_problems(document: Document) -> Iterator[str]:
    """ValidateAndCompileScalingModifiers."""
    modifiers = document["spec"].get("advanced", {}).get("scalingModifiers")
    if not modifiers:
        return
    if not modifiers.get("formula"):
        yield "scalingModifiers needs a formula"
        return
    target = modifiers.get("target", "")
    if not _is_number(target) or float(target) <= 0:
        yield f"scalingModifiers: target {target!r} must be a number of more than 0"
    names = {t.get("name") for t in document["spec"]["triggers"] if t["type"] not in RESOURCE_TRIGGERS}
    try:
        formula = Formula(modifiers["formula"])
    except ValueError as error:
        yield f"scalingModifiers: {error}"
        return
    for name in sorted(formula.names - names):
        yield f"scalingModifiers: the formula names {name!r}, which is the name of no trigger"


def _fallback_problems(document: Document) -> Iterator[str]:
    """CheckFallbackValid; and HasValidFallback, which turns a fallback off without a word at admission."""
    spec = document["spec"]
    fallback, modifiers = spec.get("fallback"), spec.get("advanced", {}).get("scalingModifiers")
    if fallback is None:
        return
    for name in ("failureThreshold", "replicas"):
        if fallback[name] < 0:
            yield f"fallback: {name} {fallback[name]} must be 0 or more"
    if modifiers:
        if modifiers.get("metricType") == "Value":
            yield "fallback: scalingModifiers must have metricType AverageValue"
        if not is_whole_number(modifiers.get("target", "")):
            yield (
                f"fallback: it never engages, for scalingModifiers.target {modifiers.get('target')!r} "
                "is no whole number of more than 0"
            )
    elif not any(
        trigger["type"] not in RESOURCE_TRIGGERS and trigger.get("metricType", "AverageValue") == "AverageValue"
        for trigger in spec["triggers"]
    ):
        yield "fallback: at least one trigger, of cpu or memory none, must have metricType AverageValue"


def _title(trigger: Document) -> str:
    return f"trigger {trigger.get('name') or trigger['type']}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
