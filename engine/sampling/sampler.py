"""From logits to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.messages import RawLogprobs
from engine.sampling.draw import ChunkSums
from engine.sampling.filters import apply_filters, is_filtered
from engine.sampling.hooks import LogitsHook, Target
from engine.sampling.logprobs import compute_logprobs
from engine.sampling.masks import LogitBias, MinTokensMask
from engine.sampling.penalties import Penalties
from engine.sampling.random import uniforms
from engine.sampling.row import SamplingRow
from engine.sampling_params import SamplingParams

_MIN_TEMPERATURE = 1e-30
"""Keeps the division finite for temperatures that float32 would round to 0."""

_SLICE = 2**19
"""Logits worked on at a time on the CPU: buffers of this size stay in the cache and bound the memory of a step."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token a row, and log probabilities for the rows that asked."""

    token_ids: list[int]
    logprobs: list[RawLogprobs | None]


class Sampler:
    """Chooses each row's next token: bias and masks, penalties, temperature, top-k, top-p, min-p, draw.

    vocab_size: columns of the logits. eos_token_ids: of the model. masks: further logits hooks, run after the bias
    and before the penalties.

    NOTE: a row's token is a function of its logits, its request, and nothing else: rows are only ever grouped, never
    mixed. So the batch it happens to be in cannot change it.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int], masks: Sequence[LogitsHook] = ()) -> None:
        self.vocab_size = vocab_size
        self._hooks: tuple[LogitsHook, ...] = (LogitBias(), MinTokensMask(eos_token_ids), *masks, Penalties())

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> SampledTokens:
        """The next token of each row, for the position `row.position`.

        logits: float32 (rows, vocab); left as they are. Greedy rows (temperature 0) take the largest logit, the lowest
        id among equals.
        """
        assert logits.shape == (len(rows), self.vocab_size), (logits.shape, len(rows), self.vocab_size)
        assert logits.dtype is torch.float32, logits.dtype
        if not rows:
            return SampledTokens([], [])
        token_ids = self._choose(logits, rows)
        logprobs: list[RawLogprobs | None] = [None] * len(rows)
        asking = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
        if asking:
            computed = compute_logprobs(
                _take(logits, asking), [token_ids[i] for i in asking], [rows[i].params.logprobs or 0 for i in asking]
            )
            for i, entry in zip(asking, computed, strict=True):
                logprobs[i] = entry
        return SampledTokens(token_ids, logprobs)

    def _choose(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[int]:
        edited = {i for i, row in enumerate(rows) if any(hook.wants(row) for hook in self._hooks)}
        greedy = [i for i, row in enumerate(rows) if row.params.is_greedy and i not in edited]
        if len(greedy) == len(rows):
            return _to_ids(logits.argmax(-1))
        token_ids = [0] * len(rows)
        if greedy:
            _put(token_ids, greedy, _take(logits, greedy).argmax(-1))
        rest = [i for i, row in enumerate(rows) if not row.params.is_greedy or i in edited]
        if edited:
            work = logits[rest]
            self._run_hooks(work, [rows[i] for i in rest])
        else:
            work = _take(logits, rest)
        greedy = [at for at, i in enumerate(rest) if rows[i].params.is_greedy]
        sampled = [at for at, i in enumerate(rest) if not rows[i].params.is_greedy]
        if greedy:
            _put(token_ids, [rest[at] for at in greedy], _take(work, greedy).argmax(-1))
        if sampled:
            quantiles = _quantiles([rows[rest[at]] for at in sampled])
            size = max(1, _SLICE // self.vocab_size) if work.device.type == "cpu" else len(sampled)
            for start in range(0, len(sampled), size):
                part = sampled[start : start + size]
                places = [rest[at] for at in part]
                params = [rows[i].params for i in places]
                _put(token_ids, places, _draw(_take(work, part), params, quantiles[start : start + size]))
        return token_ids

    def _run_hooks(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
        for hook in self._hooks:
            targets = [Target(i, row) for i, row in enumerate(rows) if hook.wants(row)]
            if targets:
                hook.apply(logits, targets)


def _quantiles(rows: Sequence[SamplingRow]) -> torch.Tensor:
    """float64 (rows): where on its cumulative distribution each row's next token lies."""
    seeds = [row.request.seed for row in rows]
    return torch.from_numpy(uniforms(seeds, [row.request.index for row in rows], [row.position for row in rows]))


def _draw(logits: torch.Tensor, params: Sequence[SamplingParams], quantiles: torch.Tensor) -> torch.Tensor:
    """One token a row from softmax(logits / temperature) after the filters. Returns int64 (rows)."""
    largest = logits.amax(-1, keepdim=True)
    limit = torch.finfo(torch.float32).max
    # NOTE: the largest is taken off before the division, so that neither a small temperature nor a huge logit
    # overflows upwards; downwards the weight is 0, as it should be.
    scaled = logits - largest.clamp(-limit, limit)
    if not bool(torch.isfinite(largest).all()):
        scaled.clamp_(max=0.0)  # a logit of +inf is as likely as it gets
    if any(p.temperature != 1.0 for p in params):
        scaled /= torch.tensor([[max(p.temperature, _MIN_TEMPERATURE)] for p in params], device=logits.device)
    is_any_filtered = any(is_filtered(p) for p in params)
    weights = scaled.exp() if is_any_filtered else scaled.exp_()
    if is_any_filtered:
        apply_filters(scaled, weights, params)
    return ChunkSums(weights).draw(quantiles.to(logits.device))


def _take(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """The given rows, in ascending order; without a copy where they are neighbours. To be read only."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return tensor[rows[0] : rows[-1] + 1]
    return tensor[list(rows)]


def _put(token_ids: list[int], places: Sequence[int], chosen: torch.Tensor) -> None:
    for place, token_id in zip(places, _to_ids(chosen), strict=True):
        token_ids[place] = token_id


def _to_ids(chosen: torch.Tensor) -> list[int]:
    ids: list[int] = chosen.tolist()
    return ids
