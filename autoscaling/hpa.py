"""The HorizontalPodAutoscaler's algorithm, as kube-controller-manager runs it (pkg/controller/podautoscaler)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autoscaling.behavior import Behavior, ScaleEvent, down_limit, up_limit

SYNC_SECONDS = 15
"""kube-controller-manager's --horizontal-pod-autoscaler-sync-period."""


@dataclass(frozen=True, slots=True)
class ExternalMetric:
    """An external metric: the sum of its samples, or None when it could not be had.

    type: AverageValue compares value / replicas with the target, Value compares the value itself.
    """

    value: float | None
    target: float
    type: Literal["AverageValue", "Value"] = "AverageValue"


@dataclass(frozen=True, slots=True)
class PodsMetric:
    """A metric of single pods. samples: by pod; pods that exist are in `ready` (True) or load (False)."""

    samples: Mapping[str, float]
    ready: Mapping[str, bool]
    target: float


Metric = ExternalMetric | PodsMetric


@dataclass(slots=True)
class Hpa:
    """One HPA with its memory: past recommendations and past changes. Times are seconds, in rising order."""

    min_replicas: int
    max_replicas: int
    behavior: Behavior
    _recommendations: list[tuple[float, int]] = field(default_factory=list)
    _ups: list[ScaleEvent] = field(default_factory=list)
    _downs: list[ScaleEvent] = field(default_factory=list)

    def sync(self, now: float, current: int, metrics: Sequence[Metric]) -> int:
        """The replicas it sets. current: the target's spec.replicas, which it finds; 0 turns the HPA off."""
        if current == 0:
            return 0
        if not self._recommendations:
            # NOTE: what stands when the controller starts counts as recommended, so that a restart scales nothing in.
            self._recommendations.append((now, current))
        if current > self.max_replicas:
            desired = self.max_replicas
        elif current < self.min_replicas:
            desired = self.min_replicas
        else:
            wish = self.wish(current, metrics)
            if wish is None:
                return current
            desired = self._limit(now, current, self._stabilize(now, current, wish))
        if desired > current:
            self._ups.append(ScaleEvent(now, desired - current))
        elif desired < current:
            self._downs.append(ScaleEvent(now, current - desired))
        return desired

    def wish(self, current: int, metrics: Sequence[Metric]) -> int | None:
        """The largest demand of all metrics, before any limit. None: nothing is to be done.

        A metric that fails never scales in: with others that ask for fewer, and alone, all stays as it is; others that
        ask for more are followed (computeReplicasForMetrics).
        """
        demands = [self._demand(current, metric) for metric in metrics]
        known = [demand for demand in demands if demand is not None]
        if not known or (len(known) < len(demands) and max(known) < current):
            return None
        return max(known)

    def _demand(self, current: int, metric: Metric) -> int | None:
        if isinstance(metric, PodsMetric):
            return pods_demand(current, metric, self._within)
        if metric.value is None:
            return None
        # NOTE: quantities are whole thousandths to the controller; without that 0.8 * 3 / 0.8 would ask for 4.
        value, target = milli(metric.value), milli(metric.target)
        if metric.type == "AverageValue":
            return current if self._within(value / (target * current)) else math.ceil(value / target)
        ratio = value / target
        return current if self._within(ratio) else math.ceil(ratio * current)

    def _within(self, ratio: float) -> bool:
        return 1 - self.behavior.down.tolerance <= ratio <= 1 + self.behavior.up.tolerance

    def _stabilize(self, now: float, current: int, wish: int) -> int:
        """Up to the lowest wish of scaleUp's window, down to the highest of scaleDown's."""
        up_since = now - self.behavior.up.window_seconds
        down_since = now - self.behavior.down.window_seconds
        lowest = min([wish, *(r for time, r in self._recommendations if time > up_since)])
        highest = max([wish, *(r for time, r in self._recommendations if time > down_since)])
        self._recommendations = [(t, r) for t, r in self._recommendations if t > min(up_since, down_since)]
        self._recommendations.append((now, wish))
        return min(max(current, lowest), highest)

    def _limit(self, now: float, current: int, desired: int) -> int:
        if desired > current:
            allowed = up_limit(self.behavior.up, current, self._ups, self._downs, now)
            return min(desired, allowed, self.max_replicas)
        if desired < current:
            allowed = down_limit(self.behavior.down, current, self._ups, self._downs, now)
            return max(desired, allowed, self.min_replicas)
        return desired


def milli(value: float) -> int:
    """As `resource.NewMilliQuantity(int64(value * 1000))`: thousandths, cut off."""
    return math.trunc(round(value * 1000, 6))


def pods_demand(current: int, metric: PodsMetric, within: Callable[[float], bool]) -> int | None:
    """Replicas by the mean over the ready pods (calcPlainMetricReplicas); None when no ready pod has a sample.

    Ready pods without a sample count as at the target when that would scale in, as 0 when it would scale out; pods that
    load count as 0 when it would scale out. A result that turns the direction, or is within the tolerance, changes
    nothing.
    """

    loading = {pod for pod, ready in metric.ready.items() if not ready}
    samples = {pod: value for pod, value in metric.samples.items() if pod in metric.ready and pod not in loading}
    absent = metric.ready.keys() - loading - samples.keys()
    if not samples:
        return None
    ratio = _ratio(samples, metric.target)
    rebalance = bool(loading) and ratio > 1
    if not absent and not rebalance:
        return current if within(ratio) else math.ceil(ratio * len(samples))
    samples |= dict.fromkeys(absent, metric.target if ratio < 1 else 0.0)
    if rebalance:
        samples |= dict.fromkeys(loading, 0.0)
    again = _ratio(samples, metric.target)
    if within(again) or (again - 1) * (ratio - 1) < 0:
        return current
    demand = math.ceil(again * len(samples))
    turned = demand > current if again < 1 else demand < current
    return current if turned else demand


def _ratio(samples: Mapping[str, float], target: float) -> float:
    return sum(samples.values()) / len(samples) / target
