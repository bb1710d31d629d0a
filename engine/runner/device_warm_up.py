"""Steps that make a device ready: they compile what serving launches, and show how much memory it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.config import EngineConfig
from engine.core.ids import BlockId
from engine.core.plan import ScheduledSequence, StepPlan
from engine.core.request import Request
from engine.messages import AddSequence, SequenceId
from engine.sampling_params import MAX_LOGPROBS, SamplingParams

PROVISIONAL_BLOCKS = 16
"""Usable blocks of the pool over which the memory is measured. Sequences share them: what they compute is nothing."""

_CHUNK_LENGTHS = (2, 3, 5, 9, 17, 33, 65, 129, 257, 1025)
"""Prefill chunks on either side of every tile of the attention kernel."""

_LONG = 8192
"""Keys of a long sequence: more than this many launch nothing else."""

_GREEDY: dict[str, Any] = {"temperature": 0.0}
_SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"top_p": 0.9},
    {"top_k": 5, "min_p": 0.1},
    {"temperature": 0.0, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    {"presence_penalty": 0.5, "top_p": 0.5},
    {"temperature": 0.0, "logit_bias": {0: 1.0}, "min_tokens": 2},
    {"temperature": 0.0, "logprobs": 0},
    {"logprobs": 5, "top_k": 3},
)
_EVERYTHING: dict[str, Any] = {
    "top_p": 0.9,
    "top_k": 50,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "logit_bias": {0: 1.0},
    "min_tokens": 2,
    "logprobs": MAX_LOGPROBS,
}


class DeviceWarmUp:
    """Makes the steps. Each stands alone: its sequences are to be removed when it is done.

    NOTE: what Triton compiles depends on shapes and parameters in classes (one query or several, keys split among
    programs or not, 1 or more, divisible by 16 or not): `tests/engine/runner/test_device_warm_up.py` holds that the
    steps meet every class that serving meets.
    """

    def __init__(self, config: EngineConfig, max_model_len: int, num_blocks: int) -> None:
        """num_blocks: usable blocks of the pool, which may be too few for one sequence: its table then repeats them."""
        self._config = config
        self._context = max_model_len
        self._num_blocks = num_blocks
        self._longest = min(config.step_tokens, max_model_len - 1)
        """Tokens of the longest chunk."""
        self._late = min(max_model_len - 1, max(self._longest, _LONG))
        """Tokens of a long sequence."""
        self._serial = 0

    def largest(self) -> list[StepPlan]:
        """The steps that take the most memory: all tokens in many sequences that ask for everything, and in one."""
        num_tokens = self._config.step_tokens
        num_seqs = min(self._config.max_num_seqs, num_tokens)
        length = min(num_tokens // num_seqs, self._context - 1)
        return [
            self._step([(0, length)] * num_seqs, _EVERYTHING),
            self._step([(0, self._longest)], _GREEDY),
        ]

    def steps(self) -> list[StepPlan]:
        """One of every kind."""
        longest, late = self._longest, self._late
        plans = self.largest()
        for length in self._lengths():
            plans += [self._step([(start, length)], _GREEDY) for start in {0, late - length}]
        most = min(self._config.max_num_seqs, self._config.step_tokens)
        for count in sorted({min(count, most) for count in (1, 2, 3, 16, 17, most)}):
            plans += [self._step([(start, 1)] * count, _GREEDY) for start in ({0, late - 1} if count < 4 else {0})]
        if most > 1 and longest > 1:
            decode, chunk = (late - 1, 1), (0, longest - 1)
            plans += [self._step([decode, chunk], _GREEDY), self._step([decode, decode, (0, 2)][:most], _GREEDY)]
        for params in _SAMPLING:
            plans += [self._step([(0, 1)] * count, params) for count in {1, min(3, most)}]
        return plans

    def single_chunks(self) -> list[StepPlan]:
        """A decode and a chunk of each length: to be run with keys split and not split, which `steps` leaves to chance.

        NOTE: the kernel chooses by the number of programs and keys, and of those there are too many pairs to meet.
        """
        lengths = {1} | {min(length, self._longest) for length in _CHUNK_LENGTHS}
        return [self._step([(0, length)], _GREEDY) for length in sorted(lengths)]

    def _lengths(self) -> list[int]:
        return sorted({length for length in _CHUNK_LENGTHS if length < self._longest} | {self._longest})

    def _step(self, spans: Iterable[tuple[int, int]], params: dict[str, Any]) -> StepPlan:
        """spans: (tokens computed before, new tokens) of each sequence."""
        return StepPlan(tuple(self._sequence(start, length, params) for start, length in spans), ())

    def _sequence(self, start: int, length: int, params: dict[str, Any]) -> ScheduledSequence:
        sampling = SamplingParams(**params)
        sequence_id = SequenceId(f"warm-up/{self._serial}")
        request = Request(AddSequence(sequence_id, (0,) * (start + length), sampling, 0, 0, 0.0), self._serial)
        self._serial += 1
        num_blocks = -(-(start + length) // self._config.block_size)
        request.block_ids = [BlockId(1 + i % self._num_blocks) for i in range(num_blocks)]
        return ScheduledSequence(request, start, length, samples=True)
