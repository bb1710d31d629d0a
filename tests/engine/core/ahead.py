"""A scheduler that plans before the result of the plan before is there, for its tests."""

from __future__ import annotations

from engine.core.block_pool import BlockPool
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.messages import SequenceOutput
from tests.engine.core.support import FixedStep, PagedFakeRunner, make_request, make_scheduler, next_token


class Ahead:
    """A scheduler and a runner, with the result of one step outstanding between calls of `step`."""

    def __init__(self, num_blocks: int = 64, **bounds: object) -> None:
        self.scheduler: Scheduler
        self.pool: BlockPool
        self.scheduler, self.pool = make_scheduler(num_blocks, **bounds)  # type: ignore[arg-type]
        self.runner = PagedFakeRunner(4)
        self.launched: list[tuple[StepPlan, FixedStep]] = []
        self.num_added = 0

    def add(self, name: str, prompt: object, **params: object) -> Request:
        request = make_request(name, prompt, serial=self.num_added, **params)  # type: ignore[arg-type]
        self.num_added += 1
        self.scheduler.add(request)
        return request

    def plan(self) -> list[tuple[str, int, int, bool]]:
        """Plans and launches a step."""
        plan = self.scheduler.schedule()
        if plan.scheduled:
            self.launched.append((plan, self.runner.launch(plan)))
        self.scheduler.check_integrity()
        return [(i.request.sequence_id, i.start, i.num_new_tokens, i.samples) for i in plan.scheduled]

    def take(self) -> list[SequenceOutput]:
        """Takes in the oldest outstanding result."""
        plan, launched = self.launched.pop(0)
        outputs = self.scheduler.update(plan, launched.result())
        self.scheduler.check_integrity()
        return outputs

    def step(self) -> list[SequenceOutput]:
        while len(self.launched) < 2 and self.plan():
            pass
        return self.take()

    def run(self) -> list[SequenceOutput]:
        outputs = []
        while self.scheduler.has_requests() or self.launched:
            outputs += self.step()
        return outputs


def tokens_of(outputs: list[SequenceOutput], name: str) -> list[int]:
    return [token for output in outputs if output.sequence_id == name for token in output.token_ids]


def greedy(prompt: object, count: int) -> list[int]:
    tokens = list(prompt)  # type: ignore[call-overload]
    for _ in range(count):
        tokens.append(next_token(tokens, 1000))
    return tokens[-count:]
