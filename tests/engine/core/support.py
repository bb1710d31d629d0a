"""What the tests of the core share: requests, a runner whose KV cache notices wrong sharing, and a plain loop."""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType

from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.engine_core import EngineCore
from engine.core.finish import FinishRules
from engine.core.plan import ScheduledSequence, StepPlan, StepResult
from engine.core.policy import AgingPolicy
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.messages import AddSequence, ModelInfo, SequenceId, SequenceOutput
from engine.sampling_params import SamplingParams


def next_token(history: Sequence[int], vocab_size: int, index: int = 0) -> int:
    """The fake model: its token is a pure function of all tokens before it and the sequence's index in its request."""
    return zlib.crc32(array("q", history).tobytes(), index) % vocab_size


def run_alone(
    prompt: Sequence[int],
    params: SamplingParams,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    max_model_len: int,
    index: int = 0,
) -> tuple[list[int], str]:
    """Output tokens and finish reason of a prompt by the plainest loop there is: no pool, no batch, no steps."""
    tokens = list(prompt)
    while True:
        token = next_token(tokens, vocab_size, index)
        tokens.append(token)
        output = tokens[len(prompt) :]
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_token_ids))
        if token in stops and len(output) >= params.min_tokens:
            return output, "stop"
        if len(output) == params.max_tokens or len(tokens) == max_model_len:
            return output, "length"


def add_message(name: str, prompt: Iterable[int], *, arrival_time: float = 0.0, **params: object) -> AddSequence:
    sampling = SamplingParams(**{"temperature": 0.0, **params})  # type: ignore[arg-type]
    return AddSequence(SequenceId(name), tuple(prompt), sampling, seed=0, index=0, arrival_time=arrival_time)


def make_request(name: str, prompt: Iterable[int], *, serial: int = 0, **kwargs: object) -> Request:
    return Request(add_message(name, prompt, **kwargs), serial)  # type: ignore[arg-type]


def make_scheduler(
    num_blocks: int = 64,
    block_size: int = 4,
    *,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 200,
    eos_token_ids: Sequence[int] = (),
    aging_seconds: float = 10.0,
    enable_prefix_caching: bool = True,
) -> tuple[Scheduler, BlockPool]:
    pool = BlockPool(num_blocks, block_size, enable_prefix_caching)
    scheduler = Scheduler(
        pool,
        AgingPolicy(aging_seconds),
        FinishRules(eos_token_ids, max_model_len),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    return scheduler, pool


def make_info(num_blocks: int, block_size: int, max_model_len: int, eos_token_ids: Sequence[int] = ()) -> ModelInfo:
    return ModelInfo(
        architecture="Fake",
        vocab_size=1000,
        max_model_len=max_model_len,
        eos_token_ids=tuple(eos_token_ids),
        block_size=block_size,
        num_blocks=num_blocks,
        dtype="float32",
        device="cpu",
        num_parameters=0,
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """What a slot of the fake KV cache holds."""

    position: int
    token_id: int
    generation: int


@dataclass(slots=True)
class Row:
    """The runner's state of a sequence between its first step and its removal. index: of its row on the device."""

    request: Request
    index: int
    next_start: int
    generation: int


@dataclass(frozen=True, slots=True)
class FixedItem:
    """A sequence's part of a launched step: all that the core said when it was launched.

    known: its tokens then, up to the last one computed here, which is missing where it was pending.
    """

    name: SequenceId
    index: int
    row: int
    start: int
    end: int
    samples: bool
    known: tuple[int, ...]
    slots: tuple[int, ...]
    generation: int


class FixedStep:
    """A launched step of `PagedFakeRunner`."""

    def __init__(self, runner: PagedFakeRunner, items: list[FixedItem]) -> None:
        self._runner = runner
        self._items = items
        self._generation = runner.generation

    def result(self) -> StepResult:
        """Computes the step, on nothing but what was fixed at its launch and what is on the device."""
        runner = self._runner
        assert runner.unfinished.pop(0) is self, "results are taken in the order of the launches, once"
        for item in self._items:
            runner.write(item, self._generation)
        token_ids = tuple(runner.read_and_sample(item) for item in self._items)
        return StepResult(token_ids, (None,) * len(token_ids))


class PagedFakeRunner:
    """A runner without a model but with a KV cache, which it fills and reads as attention does.

    First the slots of the whole batch are written, then each sequence reads its history through its block table; the
    next token depends on what was read there, not on what the request claims. So a block that is shared wrongly,
    reused too early or never filled changes the output or fails the check here. A pending token is read from the
    sequence's row on the device, where the step that sampled it left it: so does a row that was given away too early.
    """

    def __init__(self, block_size: int, vocab_size: int = 1000, tokens_a_step: Callable[[], int] = lambda: 1) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.tokens_a_step = tokens_a_step
        self.generation = 0
        """Stands for the weights: cells of different generations must not meet in a sequence begun after a reset."""
        self.cells: dict[int, Cell] = {}
        self.rows: dict[SequenceId, Row] = {}
        self.free_rows: list[int] = []
        self.sampled: list[int] = []
        """On the device: the token sampled last for each row."""
        self.unfinished: list[FixedStep] = []
        self.plans: list[StepPlan] = []
        self.num_computed = 0

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> FixedStep:
        assert plan.scheduled, "nothing to compute"
        assert len(self.unfinished) <= 1, "two steps are unfinished"
        self.plans.append(plan)
        for sequence_id in plan.removed:
            self.free_rows.append(self.rows.pop(sequence_id).index)
        step = FixedStep(self, [self._fix(item) for item in plan.scheduled])
        self.unfinished.append(step)
        return step

    def _fix(self, item: ScheduledSequence) -> FixedItem:
        request, end = item.request, item.start + item.num_new_tokens
        if request.sequence_id not in self.rows:
            if not self.free_rows:
                self.free_rows.append(len(self.sampled))
                self.sampled.append(-1)
            self.rows[request.sequence_id] = Row(request, self.free_rows.pop(), item.start, self.generation)
        row = self.rows[request.sequence_id]
        assert row.request is request, "an old row was not removed"
        assert row.next_start == item.start, "a sequence went on elsewhere than it stopped"
        row.next_start = end
        known = tuple(request.token_ids[:end])
        assert end - len(known) <= len(self.unfinished), "a pending token that no step brings"
        slots = tuple(self._slot(request, position) for position in range(end))
        return FixedItem(
            request.sequence_id, request.index, row.index, item.start, end, item.samples, known, slots, row.generation
        )

    def _slot(self, request: Request, position: int) -> int:
        block_id = request.block_ids[position // self.block_size]
        assert block_id != 0, "the dummy block was handed out"
        return block_id * self.block_size + position % self.block_size

    def _tokens(self, item: FixedItem) -> list[int]:
        return [*item.known, self.sampled[item.row]][: item.end]

    def write(self, item: FixedItem, generation: int) -> None:
        tokens = self._tokens(item)
        for position in range(item.start, item.end):
            self.cells[item.slots[position]] = Cell(position, tokens[position], generation)
            self.num_computed += 1

    def read_and_sample(self, item: FixedItem) -> tuple[int, ...]:
        cells = [self.cells[slot] for slot in item.slots]
        assert [c.position for c in cells] == list(range(item.end)), f"{item.name} reads KV of other positions"
        history = [c.token_id for c in cells]
        assert history == self._tokens(item), f"{item.name} reads KV of other tokens"
        assert min(c.generation for c in cells) >= item.generation, f"{item.name} reads KV from before a reset"
        if not item.samples:
            return ()
        for _ in range(self.tokens_a_step()):
            history.append(next_token(history, self.vocab_size, item.index))
        self.sampled[item.row] = history[-1]
        return tuple(history[item.end :])


def make_core(
    num_blocks: int = 64,
    block_size: int = 4,
    *,
    max_model_len: int = 200,
    eos_token_ids: Sequence[int] = (),
    vocab_size: int = 1000,
    **config: object,
) -> tuple[EngineCore, PagedFakeRunner]:
    runner = PagedFakeRunner(block_size, vocab_size)
    core = EngineCore(
        EngineConfig.from_kwargs(model_dir="unused", **config),
        make_info(num_blocks, block_size, max_model_len, eos_token_ids),
        runner,
    )
    return core, runner


def add(scheduler: Scheduler, name: str, prompt: object, **params: object) -> Request:
    """A request that now waits."""
    request = make_request(name, prompt, serial=scheduler.num_running + scheduler.num_waiting, **params)  # type: ignore[arg-type]
    scheduler.add(request)
    return request


def shape(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    """Of each scheduled sequence: its name, where it starts, how many tokens it computes, whether it samples."""
    return [(i.request.sequence_id, i.start, i.num_new_tokens, i.samples) for i in plan.scheduled]


def answer(plan: StepPlan, *token_ids: int) -> StepResult:
    """Each sequence that samples gets these tokens."""
    return StepResult(tuple(token_ids if i.samples else () for i in plan.scheduled), (None,) * len(plan.scheduled))


def step(scheduler: Scheduler, runner: PagedFakeRunner) -> list[SequenceOutput]:
    outputs = scheduler.update(plan := scheduler.schedule(), runner.execute(plan))
    scheduler.check_integrity()
    return outputs


def run_to_end(core: EngineCore, max_steps: int = 10_000) -> dict[str, list[int]]:
    """Steps until no work is left; output tokens by sequence."""
    tokens: dict[str, list[int]] = {}
    for _ in range(max_steps):
        if not core.has_work():
            return tokens
        for output in core.step().outputs:
            tokens.setdefault(output.sequence_id, []).extend(output.token_ids)
        core.check_integrity()
    raise AssertionError("the engine does not come to an end")


def lines_run(function: Callable[[], object]) -> int:
    """How many lines of the engine's code a call executes."""
    count = 0

    def local(frame: FrameType, event: str, arg: object) -> object:
        nonlocal count
        count += event == "line"
        return local

    def enter(frame: FrameType, event: str, arg: object) -> object:
        return local if "/engine/core/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        function()
    finally:
        sys.settrace(before)
    return count
