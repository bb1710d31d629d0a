"""How long the device stood idle between steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from torch.autograd import DeviceType
from torch.profiler import profile

LEAST_GAP = 5.0
"""µs. Shorter pauses lie between the kernels of one step, also within a CUDA graph: no host could fill them."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Of the device, from the first kernel to the last. Seconds a step; NaN where no activity was seen."""

    idle_seconds: float
    step_seconds: float


def activity_of(seen: profile, num_steps: int) -> Activity:
    """The device's kernels and copies in a profile of so many steps."""
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in seen.events() or ()
        if event.device_type == DeviceType.CUDA
    ]
    if not spans:
        return Activity(float("nan"), float("nan"))
    total = max(end for _, end in spans) - min(start for start, _ in spans)
    return Activity(idle_time(spans) / num_steps / 1e6, total / num_steps / 1e6)


def idle_time(spans: Iterable[tuple[float, float]], least_gap: float = LEAST_GAP) -> float:
    """Sum of the gaps of at least `least_gap` that no span covers, between the first start and the last end."""
    latest_ends: list[tuple[float, float]] = []
    latest = float("-inf")
    for start, end in sorted(spans):
        latest_ends.append((start, latest := max(latest, end)))
    gaps = (start - before for (_, before), (start, _) in pairwise(latest_ends))
    return sum(gap for gap in gaps if gap >= least_gap)
