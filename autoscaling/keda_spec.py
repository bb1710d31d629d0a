"""What a ScaledObject says, read from its manifest, with KEDA's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autoscaling.behavior import Behavior
from autoscaling.cron import CronWindow
from autoscaling.formula import Formula

Document = Mapping[str, Any]

DEFAULT_POLLING_SECONDS = 30
DEFAULT_COOLDOWN_SECONDS = 300
DEFAULT_MAX_REPLICAS = 100


@dataclass(frozen=True, slots=True)
class Trigger:
    """One trigger. target: what a replica carries, in the unit of its value. active above `activation`.

    target is None where the metadata does not tell it (an external scaler says it at run time).
    """

    name: str
    type: str
    target: float | None
    activation: float
    ignore_null: bool
    metric_type: Literal["AverageValue", "Value"]
    window: CronWindow | None = None
    desired_replicas: int = 0


@dataclass(frozen=True, slots=True)
class Fallback:
    """After more than `failure_threshold` failures in a row a trigger reads as what these replicas carry."""

    failure_threshold: int
    replicas: int
    behavior: str

    def replicas_at(self, current: int) -> int:
        """The replicas it stands for while `current` are set (doFallback)."""
        match self.behavior:
            case "currentReplicas":
                return current
            case "currentReplicasIfHigher":
                return max(current, self.replicas)
            case "currentReplicasIfLower":
                return min(current, self.replicas)
        return self.replicas


@dataclass(frozen=True, slots=True)
class Modifiers:
    """advanced.scalingModifiers."""

    formula: Formula
    target: float
    target_is_whole: bool
    activation: float


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """A ScaledObject."""

    name: str
    triggers: tuple[Trigger, ...]
    min_replicas: int
    max_replicas: int
    polling_seconds: int
    cooldown_seconds: int
    initial_cooldown_seconds: int
    behavior: Behavior
    fallback: Fallback | None
    modifiers: Modifiers | None

    @classmethod
    def of(cls, document: Document) -> ScaledObject:
        """From a manifest that the rules of `keda_rules` accept."""
        spec = document["spec"]
        advanced = spec.get("advanced", {})
        fallback = spec.get("fallback")
        modifiers = advanced.get("scalingModifiers")
        return cls(
            name=document["metadata"]["name"],
            triggers=tuple(_trigger(index, each) for index, each in enumerate(spec["triggers"])),
            min_replicas=spec.get("minReplicaCount", 0),
            max_replicas=spec.get("maxReplicaCount", DEFAULT_MAX_REPLICAS),
            polling_seconds=spec.get("pollingInterval", DEFAULT_POLLING_SECONDS),
            cooldown_seconds=spec.get("cooldownPeriod", DEFAULT_COOLDOWN_SECONDS),
            initial_cooldown_seconds=spec.get("initialCooldownPeriod", 0),
            behavior=Behavior.of(advanced.get("horizontalPodAutoscalerConfig", {}).get("behavior")),
            fallback=fallback
            and Fallback(fallback["failureThreshold"], fallback["replicas"], fallback.get("behavior", "static")),
            modifiers=modifiers and _modifiers(modifiers),
        )


def _trigger(index: int, spec: Document) -> Trigger:
    metadata = spec["metadata"]
    window, desired, target = None, 0, metadata.get("threshold")
    if spec["type"] == "cron":
        window = CronWindow.of(metadata["start"], metadata["end"], metadata["timezone"])
        desired, target = int(metadata["desiredReplicas"]), 1
    return Trigger(
        name=spec.get("name", f"s{index}-{spec['type']}"),
        type=spec["type"],
        target=None if target is None else float(target),
        activation=float(metadata.get("activationThreshold", 0)),
        ignore_null=metadata.get("ignoreNullValues", "true") == "true",
        metric_type=spec.get("metricType", "AverageValue"),
        window=window,
        desired_replicas=desired,
    )


def _modifiers(spec: Document) -> Modifiers:
    return Modifiers(
        formula=Formula(spec["formula"]),
        target=float(spec["target"]),
        target_is_whole=is_whole_number(spec["target"]),
        activation=float(spec.get("activationTarget", 0)),
    )


def is_whole_number(text: str) -> bool:
    """What Go's strconv.ParseInt takes, and above 0: without it a fallback beside scalingModifiers stays off."""
    return text.removeprefix("+").isdecimal() and text.isascii() and int(text) > 0
