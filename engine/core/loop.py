"""In which order steps are planned, computed and taken in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.core.plan import PendingStep, Runner, StepPlan, StepResult
from engine.core.scheduler import Scheduler
from engine.messages import Admitted, Preempted, Resumed, SequenceOutput


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """What one step brought.

    plan: what it computed, also for sequences that turned out to have ended before it, whose results are dropped.
    admitted: the sequences that were first admitted since the step completed before; preempted, resumed: those that
    lost their place since then, and those that have it again. seconds: the time it took, of which no part belongs to
    another step.
    """

    plan: StepPlan
    outputs: list[SequenceOutput]
    admitted: tuple[Admitted, ...]
    preempted: tuple[Preempted, ...]
    resumed: tuple[Resumed, ...]
    seconds: float


class StepLoop(ABC):
    """Steps over one scheduler and one runner. An exception of either rises, and ends the engine."""

    def __init__(self, scheduler: Scheduler, runner: Runner, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._admitted: list[Admitted] = []
        self._preempted: list[Preempted] = []
        self._resumed: list[Resumed] = []
        self.steps_total = 0
        """Steps completed."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether `step` may be called."""

    @abstractmethod
    def step(self) -> CompletedStep:
        """Completes one step."""

    def _plan(self) -> StepPlan:
        plan = self._scheduler.schedule()
        now = self._clock()
        self._admitted += (Admitted(r.sequence_id, r.num_cached_tokens, now) for r in self._scheduler.take_admitted())
        self._preempted += (Preempted(name, now) for name in self._scheduler.take_preempted())
        self._resumed += (Resumed(name, now) for name in self._scheduler.take_resumed())
        return plan

    def _complete(self, plan: StepPlan, result: StepResult, started: float) -> CompletedStep:
        outputs = self._scheduler.update(plan, result)
        admitted, self._admitted = tuple(self._admitted), []
        preempted, self._preempted = tuple(self._preempted), []
        resumed, self._resumed = tuple(self._resumed), []
        self.steps_total += 1
        return CompletedStep(plan, outputs, admitted, preempted, resumed, self._clock() - started)


class PlainLoop(StepLoop):
    """Plans a step, computes it, takes its result in."""

    def has_work(self) -> bool:
        return self._scheduler.has_requests()

    def step(self) -> CompletedStep:
        started = self._clock()
        plan = self._plan()
        return self._complete(plan, self._runner.execute(plan), started)


@dataclass(frozen=True, slots=True)
class _Launched:
    plan: StepPlan
    pending: PendingStep


class OverlappedLoop(StepLoop):
    """Launches the next step before it waits for the one that runs, so that the device always has work.

    Between two calls of `step` one step runs on the device: what the caller does then, and planning the step after it,
    costs no device time. The price: a request that arrives while a step runs waits for that one and for the next, and
    a sequence that ends by a stop token is computed once more, for nothing.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, clock: Callable[[], float]) -> None:
        super().__init__(scheduler, runner, clock)
        self._launched: deque[_Launched] = deque()
        """Oldest first; at most two, and between steps at most one."""
        self._device_since = 0.0
        """When the oldest launched step had the device for itself, as far as the results tell."""

    def has_work(self) -> bool:
        """Also while a step runs whose sequences have all ended: its result is still to be taken in."""
        return bool(self._launched) or self._scheduler.has_requests()

    def step(self) -> CompletedStep:
        if not self._launched:
            self._device_since = self._clock()
            self._launch()
        self._launch()
        # NOTE: a step leaves the queue when its result is there, so that an interrupted wait (Ctrl-C in a notebook)
        # can be taken up again.
        oldest = self._launched[0]
        result = oldest.pending.result()
        self._launched.popleft()
        started = self._device_since
        completed = self._complete(oldest.plan, result, started)
        self._device_since = started + completed.seconds
        return completed

    def _launch(self) -> None:
        """Launches the next step, unless two are outstanding or all requests wait for the one that is."""
        if len(self._launched) < 2 and (plan := self._plan()).scheduled:
            self._launched.append(_Launched(plan, self._runner.launch(plan)))
