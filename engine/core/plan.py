"""What the scheduler asks of the runner for one step, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.core.request import Request
from engine.messages import RawLogprobs, SequenceId


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """`num_new_tokens` tokens of `request`, from position `start` on, are computed in this step.

    The request's block_ids already hold slots for all of them. `samples`: whether the last of them is the request's
    last token (the pending one, where one is), so that the step yields a next token for it.
    """

    request: Request
    start: int
    num_new_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `removed`: sequences that are over, were aborted or preempted since the last plan (rows to drop);
    a preempted one may be scheduled again in the same or a later plan with num_computed_tokens started over.

    NOTE: where steps are launched ahead, an unfinished step may still compute a removed sequence, and bring a token of
    it that counts. Its row and its blocks may be another's in this plan.
    """

    scheduled: tuple[ScheduledSequence, ...]
    removed: tuple[SequenceId, ...]

    @property
    def num_tokens(self) -> int:
        return sum(s.num_new_tokens for s in self.scheduled)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Aligned with `plan.scheduled`.

    token_ids[i]: the new tokens of scheduled[i]: empty when it does not sample, else one (more with speculation).
    logprobs[i]: as many entries as token_ids[i], or None when the request did not ask.
    """

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[RawLogprobs, ...] | None, ...]


class PendingStep(Protocol):
    """A step that has been given to the device."""

    def result(self) -> StepResult:
        """Waits for the step and returns what it brought. Called once."""
        ...


class Runner(Protocol):
    """Computes steps. The engine core knows the model only through this."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs the model over the plan's tokens, writes their KV, and samples."""
        ...

    def launch(self, plan: StepPlan) -> PendingStep:
        """Starts what `execute` does and returns before it is done.

        At most one earlier step is unfinished then, and steps take effect in the order in which they are launched.
        Whatever the runner needs of the plan's requests it reads before it returns, except a token that the unfinished
        step is to sample: a sequence with `start + num_new_tokens == request.num_tokens + 1` takes that one as its last
        input. (`request.num_pending` counts this plan's own token already.)
        """
        ...
