"""Drives the engine in this process, and takes the time of its steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.gpu.device import Device
from benchmarks.gpu.timed_runner import DeviceClock, Idleness, TimedRunner, cuda_clock, host_clock
from engine.build import build_runner
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.plan import Runner, StepPlan
from engine.messages import AbortSequences, AddSequence, ModelInfo, SequenceId
from engine.runner.choice import resolve
from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, top_k=50, max_tokens=None, ignore_eos=True)


class PoolTooSmallError(Exception):
    """A batch never decodes together."""


@dataclass(frozen=True, slots=True)
class DecodeTimes:
    """Of steps in which a whole batch decodes.

    tokens_per_second: of all sequences. step_seconds: median. num_keys: mean keys of a sequence in these steps.
    """

    tokens_per_second: float
    step_seconds: float
    num_keys: float


class EngineDriver:
    """A runner, made once: the model, its KV pool and its CUDA graphs."""

    def __init__(self, device: Device, model_dir: Path, **fields: Any) -> None:
        """fields: of `EngineConfig`."""
        where = "cpu" if device.is_smoke else "cuda"
        config = EngineConfig(
            model_dir=model_dir, device=where, attention_backend="triton", enable_prefix_caching=False, **fields
        )
        self._config = resolve(config)
        self._runner = build_runner(self._config, lambda _progress: None)
        self._make_clock = host_clock if device.is_smoke else cuda_clock
        self.info = self._runner.info

    def core(self, *, overlap: bool) -> CoreDriver:
        """A core over the runner; one at a time may have sequences."""
        return CoreDriver(replace(self._config, overlap=overlap), self.info, self._runner, self._make_clock)


class CoreDriver:
    """An engine core, idle between calls."""

    def __init__(
        self, config: EngineConfig, info: ModelInfo, runner: Runner, make_clock: Callable[[], DeviceClock] = host_clock
    ) -> None:
        self._runner = TimedRunner(runner, make_clock)
        self._core = EngineCore(config, info, self._runner)
        self._random = Random(0)
        self._num_added = 0

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
        """The tokens of all prompts, run together."""
        tokens: dict[SequenceId, list[int]] = {sequence_id: [] for sequence_id in self._add(prompts, params)}
        while self._core.has_work():
            for output in self._core.step().outputs:
                tokens[output.sequence_id] += output.token_ids
        self._forget(tuple(tokens))
        return list(tokens.values())

    def time_to_first_token(self, num_tokens: int, repeats: int = 3) -> float:
        """Median seconds from a prompt's arrival at the idle engine to its first token."""
        times = []
        for _ in range(repeats + 1):
            prompt = self._prompt(num_tokens)
            started = time.perf_counter()
            self.generate([prompt], replace(GREEDY, max_tokens=1))
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])

    def decode(self, batch: int, prompt_tokens: int, num_steps: int, params: SamplingParams = GREEDY) -> DecodeTimes:
        """Raises `PoolTooSmallError` where the KV pool does not hold the batch."""
        with self._decoding(batch, prompt_tokens, num_steps, params) as num_keys:
            ends = [self._step(batch) for _ in range(num_steps + 1)]
        periods = [b - a for a, b in pairwise(ends)]
        rate = batch * num_steps / (ends[-1] - ends[0])
        return DecodeTimes(rate, statistics.median(periods), num_keys + num_steps / 2)

    def idleness(self, batch: int, prompt_tokens: int, num_steps: int) -> Idleness:
        """How the device stood idle between so many decode steps. Raises as `decode`."""
        with self._decoding(batch, prompt_tokens, num_steps, GREEDY):
            self._step(batch)
            self._runner.reset()
            for _ in range(num_steps):
                self._step(batch)
            return self._runner.idleness()

    @contextmanager
    def _decoding(
        self, batch: int, prompt_tokens: int, num_steps: int, params: SamplingParams
    ) -> Generator[float, None, None]:
        """Brings a batch to where all of it decode, and takes it away again. Gives the mean keys of a sequence."""
        # NOTE: the first sequences decode while the last are still prefilled, a few prompts a step.
        params = replace(params, max_tokens=num_steps + batch + 8)
        ids = self._add([self._prompt(prompt_tokens) for _ in range(batch)], params)
        try:
            produced = new = 0
            while new < batch:
                outputs = self._core.step().outputs
                new = sum(len(output.token_ids) for output in outputs)
                produced += new
                if any(output.finish_reason for output in outputs):
                    raise PoolTooSmallError(_too_small(batch))
            yield prompt_tokens + produced / batch
        finally:
            self._stop(ids)

    def _step(self, batch: int) -> float:
        """One decode step of the whole batch. Returns the time at its end."""
        outputs = self._core.step().outputs
        ended = time.perf_counter()
        if sum(len(output.token_ids) for output in outputs) != batch:
            raise PoolTooSmallError(_too_small(batch))
        return ended

    def _stop(self, ids: Sequence[SequenceId]) -> None:
        self._core.handle(AbortSequences(tuple(ids)))
        while self._core.has_work():
            self._core.step()
        self._forget(ids)

    def _forget(self, ids: Sequence[SequenceId]) -> None:
        """Drops the rows that the core would have the runner drop with its next step."""
        self._runner.execute(StepPlan((), tuple(ids)))

    def _add(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[SequenceId]:
        ids = [SequenceId(f"{self._num_added + i}/0") for i in range(len(prompts))]
        for sequence_id, prompt in zip(ids, prompts, strict=True):
            message = AddSequence(sequence_id, tuple(prompt), params, self._num_added, 0, time.monotonic())
            self._core.handle(message)
            self._num_added += 1
        return ids

    def _prompt(self, num_tokens: int) -> list[int]:
        return self._random.choices(range(3, self._core.info.vocab_size), k=num_tokens)


def _too_small(batch: int) -> str:
    return f"the KV pool does not hold {batch} sequences at a time"
