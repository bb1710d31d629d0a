"""How fast an HPA may move: stabilisation windows and policies, with the API server's defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autoscaling.quantity import parse_quantity

CLUSTER_TOLERANCE = 0.1
"""kube-controller-manager's --horizontal-pod-autoscaler-tolerance."""


@dataclass(frozen=True, slots=True)
class Policy:
    """At most `value` pods, or percent of the pods, in any `period_seconds`."""

    type: Literal["Pods", "Percent"]
    value: int
    period_seconds: int


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """One direction. select_policy: Max takes the policy of the largest change, Min the smallest, Disabled none."""

    window_seconds: int
    policies: tuple[Policy, ...]
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    tolerance: float = CLUSTER_TOLERANCE


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    """A change of `replicas` pods (counted positive) at `time`, in seconds."""

    time: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Behavior:
    """Both directions."""

    up: ScalingRules
    down: ScalingRules

    @classmethod
    def of(cls, spec: Mapping[str, Any] | None) -> Behavior:
        """From `spec.behavior` of autoscaling/v2; what is absent takes the API server's defaults (SetDefaults_HPA)."""
        spec = spec or {}
        return cls(
            _rules(spec.get("scaleUp"), 0, (Policy("Pods", 4, 15), Policy("Percent", 100, 15))),
            _rules(spec.get("scaleDown"), 300, (Policy("Percent", 100, 15),)),
        )


def _rules(spec: Mapping[str, Any] | None, window: int, policies: tuple[Policy, ...]) -> ScalingRules:
    spec = spec or {}
    given = tuple(Policy(p["type"], p["value"], p["periodSeconds"]) for p in spec.get("policies", ()))
    return ScalingRules(
        spec.get("stabilizationWindowSeconds", window),
        given or policies,
        spec.get("selectPolicy", "Max"),
        float(parse_quantity(spec["tolerance"])) if "tolerance" in spec else CLUSTER_TOLERANCE,
    )


def up_limit(
    rules: ScalingRules, current: int, ups: Sequence[ScaleEvent], downs: Sequence[ScaleEvent], now: float
) -> int:
    """The most replicas that the policies allow now (calculateScaleUpLimitWithScalingRules)."""
    if rules.select_policy == "Disabled":
        return current
    proposals = []
    for policy in rules.policies:
        start = _at_period_start(policy, current, ups, downs, now)
        # NOTE: rounded up, or ten percent of one pod would never add one.
        by_percent = math.ceil(start * (1 + policy.value / 100))
        proposals.append(start + policy.value if policy.type == "Pods" else by_percent)
    limit = min(proposals) if rules.select_policy == "Min" else max(proposals)
    return max(limit, current)


def down_limit(
    rules: ScalingRules, current: int, ups: Sequence[ScaleEvent], downs: Sequence[ScaleEvent], now: float
) -> int:
    """The fewest replicas that the policies allow now (calculateScaleDownLimitWithBehaviors)."""
    if rules.select_policy == "Disabled":
        return current
    proposals = []
    for policy in rules.policies:
        start = _at_period_start(policy, current, ups, downs, now)
        by_percent = math.trunc(start * (1 - policy.value / 100))
        proposals.append(start - policy.value if policy.type == "Pods" else by_percent)
    limit = max(proposals) if rules.select_policy == "Min" else min(proposals)
    return min(limit, current)


def _at_period_start(
    policy: Policy, current: int, ups: Sequence[ScaleEvent], downs: Sequence[ScaleEvent], now: float
) -> int:
    since = now - policy.period_seconds
    added = sum(event.replicas for event in ups if event.time > since)
    removed = sum(event.replicas for event in downs if event.time > since)
    return current - added + removed
