"""How long the device stands idle between steps, seen from the launches, with no profiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from engine.core.plan import PendingStep, Runner, StepPlan, StepResult

DeviceClock = Callable[[], Callable[[], float]]
"""Places a mark behind all work launched so far. What it returns gives, once the device has passed the mark, the time
of that on the clock of `time.perf_counter`."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """Seconds a step: of the device without work, at most, and from step to step."""

    idle: float
    step: float


class TimedRunner:
    """A `Runner` that notes for each step when its launch was complete, and when the device was done with it."""

    def __init__(self, runner: Runner, make_clock: Callable[[], DeviceClock]) -> None:
        self._runner = runner
        self._make_clock = make_clock
        self._mark = make_clock()
        self._steps: list[tuple[float, Callable[[], float]]] = []

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> PendingStep:
        pending = self._runner.launch(plan)
        self._steps.append((time.perf_counter(), self._mark()))
        return pending

    def reset(self) -> None:
        """Forgets the steps so far."""
        self._steps.clear()
        self._mark = self._make_clock()

    def idleness(self) -> Idleness:
        """Of the steps since `reset`, at least two.

        The device is idle from the end of a step until, at the latest, the next one's launch is complete: not at all
        where that one was complete before. NOTE: an upper bound, since a step begins before all of it is launched.
        """
        launched, ended = zip(*((launch, end()) for launch, end in self._steps), strict=True)
        idle = sum(max(0.0, launch - end) for launch, end in zip(launched[1:], ended[:-1], strict=True))
        num_periods = sum(1 for _ in pairwise(ended))
        return Idleness(idle / num_periods, (ended[-1] - ended[0]) / num_periods)


def cuda_clock() -> DeviceClock:
    """Marks of the current stream."""
    origin = torch.cuda.Event(enable_timing=True)
    origin.record()
    origin.synchronize()
    started = time.perf_counter()

    def mark() -> Callable[[], float]:
        event = torch.cuda.Event(enable_timing=True)
        event.record()

        def passed() -> float:
            event.synchronize()
            return started + origin.elapsed_time(event) / 1e3

        return passed

    return mark


def host_clock() -> DeviceClock:
    """Marks of a device that is done when a launch returns."""

    def mark() -> Callable[[], float]:
        now = time.perf_counter()
        return lambda: now

    return mark
