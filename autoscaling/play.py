"""Plays out what a manifest would do: KEDA and the HPA, or an HPA alone, against a load that is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from autoscaling.behavior import Behavior
from autoscaling.hpa import SYNC_SECONDS, Hpa, Metric
from autoscaling.keda import Answer, Keda
from autoscaling.keda_spec import ScaledObject

START = datetime(2026, 11, 29, tzinfo=UTC)
"""A Sunday, so that no schedule of working days runs."""


def play_keda(
    spec: ScaledObject,
    answers: Callable[[int, int], Mapping[str, Answer]],
    *,
    seconds: int,
    replicas: int,
    start: datetime = START,
    last_active: float | None = None,
) -> list[int]:
    """Replicas at each second. answers(second, replicas): what each trigger's source answers then.

    Every pod counts at once; a load time belongs into `answers`. last_active: seconds, negative for before the start.
    """
    keda = Keda(spec, start, last_active)
    hpa = Hpa(max(spec.min_replicas, 1), spec.max_replicas, spec.behavior)
    trace = []
    for second in range(seconds):
        moment = start + timedelta(seconds=second)
        if second % spec.polling_seconds == 0:
            replicas = keda.poll(second, moment, replicas, answers(second, replicas))
        # NOTE: the HPA asks for no metrics while it finds 0 replicas.
        if second % SYNC_SECONDS == 0 and replicas > 0:
            replicas = hpa.sync(second, replicas, keda.metrics(moment, replicas, answers(second, replicas)))
        trace.append(replicas)
    return trace


def play_hpa(
    spec: Mapping[str, Any], metrics: Callable[[int, int], Sequence[Metric]], *, seconds: int, replicas: int
) -> list[int]:
    """Replicas at each second of an HPA alone. spec: `spec` of autoscaling/v2."""
    hpa = Hpa(spec.get("minReplicas", 1), spec["maxReplicas"], Behavior.of(spec.get("behavior")))
    trace = []
    for second in range(seconds):
        if second % SYNC_SECONDS == 0:
            replicas = hpa.sync(second, replicas, metrics(second, replicas))
        trace.append(replicas)
    return trace
