from __future__ import annotations

from typing import Any

import pytest

from autoscaling.hpa_rules import behavior_problems, hpa_problems

POLICY = {"type": "Pods", "value": 1, "periodSeconds": 60}
EXTERNAL = {"metric": {"name": "a"}, "target": {"type": "AverageValue", "averageValue": "48"}}


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ({"stabilizationWindowSeconds": 3600, "policies": [POLICY], "selectPolicy": "Min"}, None),
        ({}, None),
        ({"stabilizationWindowSeconds": -1}, "-1 is not between"),
        ({"stabilizationWindowSeconds": 3601}, "3601 is not between"),
        ({"selectPolicy": "Most"}, "'Most'"),
        ({"policies": []}, "empty list"),
        ({"policies": [{**POLICY, "type": "Replicas"}]}, "'Replicas'"),
        ({"policies": [{**POLICY, "value": 0}]}, "value 0"),
        ({"policies": [{**POLICY, "periodSeconds": 0}]}, "periodSeconds 0"),
        ({"policies": [{**POLICY, "periodSeconds": 1801}]}, "periodSeconds 1801"),
    ],
)
@pytest.mark.parametrize("direction", ["scaleUp", "scaleDown"])
def test_behavior(direction: str, rules: dict[str, Any], named: str | None) -> None:
    found = "\n".join(behavior_problems({direction: rules}))
    assert not found if named is None else named in found and direction in found


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, None),
        ({"minReplicas": 0}, "HPAScaleToZero"),
        ({"minReplicas": 9}, "more than maxReplicas"),
        ({"metrics": []}, "no metrics"),
        ({"metrics": [{"type": "External"}]}, "needs the field external"),
        ({"metrics": [{"type": "External", "external": {**EXTERNAL, "target": {"type": "Value"}}}]}, "needs value"),
        (
            {"metrics": [{"type": "External", "external": {**EXTERNAL, "target": {"type": "Value", "value": "0"}}}]},
            "more than 0",
        ),
        (
            {"metrics": [{"type": "Pods", "pods": {**EXTERNAL, "target": {"type": "Value", "value": "1"}}}]},
            "AverageValue only",
        ),
        ({"behavior": {"scaleUp": {"policies": []}}}, "empty list"),
    ],
)
def test_hpa(changes: dict[str, Any], named: str | None) -> None:
    spec = {"maxReplicas": 8, "metrics": [{"type": "External", "external": EXTERNAL}], **changes}
    found = "\n".join(hpa_problems({"spec": spec}))
    assert not found if named is None else named in found
