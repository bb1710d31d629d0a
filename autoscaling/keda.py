"""KEDA 2.20 at run time: what its operator does to the replicas, and what its metrics server tells the HPA."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from autoscaling.hpa import ExternalMetric
from autoscaling.keda_spec import ScaledObject, Trigger

Answer = Sequence[float] | None
"""What a source answers: the values of its samples (a Prometheus may give none, or several), or None for a failure."""


class ScalerError(Exception):
    """A trigger whose value cannot be had."""


def read_value(trigger: Trigger, answer: Answer, moment: datetime) -> float:
    """A trigger's value (prometheusScaler.ExecutePromQuery, cronScaler). Raises `ScalerError`.

    An empty answer, NaN or an infinite value is 0 with ignoreNullValues, and an error without. Several samples are an
    error always.
    """
    if trigger.window is not None:
        # NOTE: 1, not 0, outside the window: a cron trigger never asks for fewer replicas than one.
        return float(trigger.desired_replicas) if trigger.window.is_active(moment) else 1.0
    if answer is None:
        raise ScalerError(f"{trigger.name}: the source does not answer")
    if len(answer) > 1:
        raise ScalerError(f"{trigger.name}: {len(answer)} samples, where the query has to give one")
    if not answer or not math.isfinite(answer[0]):
        if trigger.ignore_null:
            return 0.0
        raise ScalerError(f"{trigger.name}: no value, the target may be lost")
    return answer[0]


@dataclass(slots=True)
class Keda:
    """One ScaledObject in a running KEDA. Times are seconds since `started`, which is when it was created."""

    spec: ScaledObject
    started: datetime
    last_active: float | None = None
    failures: dict[str, int] = field(default_factory=dict)

    def poll(self, now: float, moment: datetime, current: int, answers: Mapping[str, Answer]) -> int:
        """The operator's look, every pollingInterval: the replicas that it sets (scaleExecutor.RequestScale).

        It moves between 0 and 1 (or minReplicaCount) only; the rest is the HPA's.
        """
        values, failed = self._read(answers, moment)
        if self._is_active(values, failed, moment):
            if current == 0:
                self.last_active = now
                return max(self.spec.min_replicas, 1)
            # NOTE: with an error beside an active trigger KEDA does not renew the time of activity.
            if not failed:
                self.last_active = now
            return current
        if failed and (self.spec.fallback is None or self.spec.fallback.replicas != 0):
            return current
        if self.spec.min_replicas == 0 and current > 0:
            return 0 if self._is_cooled(now) else current
        return max(current, self.spec.min_replicas)

    def metrics(self, moment: datetime, current: int, answers: Mapping[str, Answer]) -> list[ExternalMetric]:
        """What the HPA gets at a sync, fallback included (GetScaledObjectMetrics). Counts failures."""
        values, failed = self._read(answers, moment)
        for trigger in self.spec.triggers:
            self.failures[trigger.name] = self.failures.get(trigger.name, 0) + 1 if trigger.name in failed else 0
        falling = [t for t in self.spec.triggers if self._falls_back(t)]
        if self.spec.modifiers is not None:
            target = self.spec.modifiers.target
            value = None if failed else self.spec.modifiers.formula.evaluate(values)
            if value is not None and not math.isfinite(value):
                value = None
            # NOTE: one trigger in fallback is enough to set the formula aside.
            return [ExternalMetric(self._fallback_value(target, current) if falling else value, target)]
        made = []
        for trigger in self.spec.triggers:
            if trigger.target is None:
                raise ValueError(f"the target of {trigger.name} is told at run time: give the trigger one")
            value = values.get(trigger.name)
            if trigger in falling:
                value = self._fallback_value(trigger.target, current)
            made.append(ExternalMetric(value, trigger.target, trigger.metric_type))
        return made

    def _read(self, answers: Mapping[str, Answer], moment: datetime) -> tuple[dict[str, float], set[str]]:
        values, failed = {}, set()
        for trigger in self.spec.triggers:
            try:
                values[trigger.name] = read_value(trigger, answers.get(trigger.name), moment)
            except ScalerError:
                failed.add(trigger.name)
        return values, failed

    def _is_active(self, values: Mapping[str, float], failed: set[str], moment: datetime) -> bool:
        if self.spec.modifiers is not None:
            modifiers = self.spec.modifiers
            return not failed and modifiers.formula.evaluate(values) > modifiers.activation
        return any(
            t.window.is_active(moment) if t.window is not None else values[t.name] > t.activation
            for t in self.spec.triggers
            if t.name in values
        )

    def _is_cooled(self, now: float) -> bool:
        if self.last_active is None:
            return now > self.spec.initial_cooldown_seconds
        return now - self.last_active > self.spec.cooldown_seconds

    def _falls_back(self, trigger: Trigger) -> bool:
        fallback = self.spec.fallback
        if fallback is None or self.failures[trigger.name] <= fallback.failure_threshold:
            return False
        return self.spec.modifiers is None or self.spec.modifiers.target_is_whole

    def _fallback_value(self, target: float, current: int) -> float:
        assert self.spec.fallback is not None
        return target * self.spec.fallback.replicas_at(current)
