"""What the API server refuses in an HPA's behaviour and bounds (pkg/apis/autoscaling/validation)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoscaling.quantity import parse_quantity

MAX_WINDOW_SECONDS = 3600
MAX_PERIOD_SECONDS = 1800


def hpa_problems(document: Mapping[str, Any]) -> list[str]:
    """Faults of a HorizontalPodAutoscaler of autoscaling/v2."""
    spec = document["spec"]
    low, high = spec.get("minReplicas", 1), spec["maxReplicas"]
    found = []
    if low < 1:
        found.append(f"minReplicas {low}: an HPA scales to 0 only behind the feature gate HPAScaleToZero")
    if low > high:
        found.append(f"minReplicas {low} is more than maxReplicas {high}")
    if not spec.get("metrics"):
        found.append("no metrics: the HPA would scale on CPU utilisation")
    for metric in spec.get("metrics", ()):
        found.extend(_target_problems(metric))
    return found + behavior_problems(spec.get("behavior", {}))


def behavior_problems(behavior: Mapping[str, Any]) -> list[str]:
    """Faults of `spec.behavior`, which KEDA passes on as it is."""
    return [problem for name in ("scaleUp", "scaleDown") for problem in _rules_problems(name, behavior.get(name, {}))]


def _rules_problems(name: str, rules: Mapping[str, Any]) -> Iterator[str]:
    window = rules.get("stabilizationWindowSeconds", 0)
    if not 0 <= window <= MAX_WINDOW_SECONDS:
        yield f"{name}: stabilizationWindowSeconds {window} is not between 0 and {MAX_WINDOW_SECONDS}"
    if rules.get("selectPolicy", "Max") not in {"Max", "Min", "Disabled"}:
        yield f"{name}: selectPolicy {rules['selectPolicy']!r} is none of Max, Min, Disabled"
    # NOTE: rules without policies are refused only where the list is given and empty; absent, it takes the defaults.
    if "policies" in rules and not rules["policies"]:
        yield f"{name}: policies must not be an empty list"
    for policy in rules.get("policies", ()):
        if policy["type"] not in {"Pods", "Percent"}:
            yield f"{name}: policy type {policy['type']!r} is neither Pods nor Percent"
        if policy["value"] <= 0:
            yield f"{name}: policy value {policy['value']} must be more than 0"
        if not 0 < policy["periodSeconds"] <= MAX_PERIOD_SECONDS:
            yield f"{name}: periodSeconds {policy['periodSeconds']} is not between 1 and {MAX_PERIOD_SECONDS}"


def _target_problems(metric: Mapping[str, Any]) -> Iterator[str]:
    kind = metric["type"]
    source = kind[0].lower() + kind[1:]
    if source not in metric:
        yield f"a metric of type {kind} needs the field {source}"
        return
    target = metric[source]["target"]
    wanted = {"Value": "value", "AverageValue": "averageValue", "Utilization": "averageUtilization"}[target["type"]]
    if wanted not in target:
        yield f"a target of type {target['type']} needs {wanted}"
    elif wanted != "averageUtilization" and parse_quantity(target[wanted]) <= 0:
        yield f"{wanted} {target[wanted]} must be more than 0"
    if kind == "Pods" and target["type"] != "AverageValue":
        yield "a metric of type Pods takes a target of type AverageValue only"
