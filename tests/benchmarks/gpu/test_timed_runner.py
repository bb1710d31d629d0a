"""`benchmarks.gpu.timed_runner` over a device whose work takes as long as the test says."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from benchmarks.gpu.timed_runner import TimedRunner, host_clock
from engine.core.plan import PendingStep, StepPlan, StepResult

PLAN = StepPlan((), ())


class Done:
    def result(self) -> StepResult:
        return StepResult((), ())


class FakeRunner:
    """Launching takes what `host_seconds` says."""

    def __init__(self, now: list[float]) -> None:
        self._now = now
        self.host_seconds = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> PendingStep:
        self._now[0] += self.host_seconds
        return Done()


class FakeDevice:
    """A stream: each step takes `seconds`, and starts when it is launched and the one before is done."""

    def __init__(self, now: list[float], seconds: float) -> None:
        self._now = now
        self._seconds = seconds
        self._free_at = 0.0

    def __call__(self) -> Callable[[], float]:
        self._free_at = ended = max(self._free_at, self._now[0]) + self._seconds
        return lambda: ended


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    return seconds


def timed(now: list[float], device_seconds: float) -> tuple[TimedRunner, FakeRunner]:
    runner = FakeRunner(now)
    device = FakeDevice(now, device_seconds)
    return TimedRunner(runner, lambda: device), runner


def test_a_step_launched_while_another_runs_leaves_no_gap(now: list[float]) -> None:
    steps, runner = timed(now, 10.0)
    runner.host_seconds = 3.0
    for _ in range(4):
        steps.launch(PLAN)
    found = steps.idleness()
    assert found.idle == 0.0
    assert found.step == 10.0


def test_the_device_waits_for_a_launch_that_comes_late(now: list[float]) -> None:
    steps, runner = timed(now, 10.0)
    runner.host_seconds = 13.0
    for _ in range(5):
        steps.launch(PLAN)
    found = steps.idleness()
    assert found.idle == pytest.approx(3.0)
    assert found.step == pytest.approx(13.0)


def test_reset_forgets_the_steps_before(now: list[float]) -> None:
    steps, runner = timed(now, 10.0)
    runner.host_seconds = 50.0
    steps.launch(PLAN)
    steps.launch(PLAN)
    steps.reset()
    runner.host_seconds = 1.0
    for _ in range(3):
        steps.execute(PLAN)
    assert steps.idleness().idle == 0.0


def test_a_device_that_is_done_when_a_launch_returns_is_idle_between_launches(now: list[float]) -> None:
    runner = FakeRunner(now)
    steps = TimedRunner(runner, host_clock)
    runner.host_seconds = 2.0
    for _ in range(3):
        steps.launch(PLAN)
    assert steps.idleness().idle == 2.0
