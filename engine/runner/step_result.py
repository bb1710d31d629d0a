"""What a step brought, in the order of its plan."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.plan import StepResult
from engine.messages import RawLogprobs
from engine.sampling.sampler import SampledTokens


def step_result(num_sequences: int, places: Sequence[int], sampled: SampledTokens) -> StepResult:
    """num_sequences: in the plan. places: in the plan, of the sequences that `sampled` has a token of, in its order."""
    token_ids: list[tuple[int, ...]] = [()] * num_sequences
    logprobs: list[tuple[RawLogprobs, ...] | None] = [None] * num_sequences
    for place, token_id, entry in zip(places, sampled.token_ids, sampled.logprobs, strict=True):
        token_ids[place] = (token_id,)
        logprobs[place] = None if entry is None else (entry,)
    return StepResult(tuple(token_ids), tuple(logprobs))
