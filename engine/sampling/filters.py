"""Top-k, top-p and min-p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.sampling.draw import ChunkSums
from engine.sampling.largest import largest_values
from engine.sampling_params import SamplingParams

SHORTLIST = 1024
"""Largest values looked at first. Nearly every top-k and most top-p sets end within them; a row whose set does not
is sorted whole."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Tokens of a row that stay: all above `value`, and the `num_ties` lowest ids among those equal to it.

    num_ties: None when all of the equal ones stay.
    """

    row: int
    value: float
    num_ties: int | None


def is_filtered(params: SamplingParams) -> bool:
    """Whether any of the three filters is on."""
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def apply_filters(scaled: torch.Tensor, weights: torch.Tensor, params: Sequence[SamplingParams]) -> None:
    """Sets to 0 the weights of the tokens that the rows' filters drop; at least one token stays.

    scaled: float32 (rows, vocab), logits over temperature minus the row's largest, so at most 0.
    weights: float32 (rows, vocab), exp(scaled), changed in place.

    Tokens are ordered by (−scaled, id). top_k keeps the first k. top_p keeps the shortest run whose share of what
    top_k kept is at least p (nucleus sampling, arXiv:1904.09751). min_p then drops tokens less likely than min_p
    times the likeliest (arXiv:2407.01082); the ratio needs no renormalisation.
    """
    cuts = _find_cuts(scaled, weights, params)
    stays = torch.empty_like(weights) if cuts or any(p.min_p > 0.0 for p in params) else weights
    if cuts:
        lowest = torch.full((len(params), 1), -torch.inf, dtype=torch.float32)
        for cut in cuts:
            lowest[cut.row] = cut.value
        # NOTE: multiplying by a 0/1 float mask is several times faster than masked_fill_ on the CPU.
        weights *= torch.ge(scaled, lowest.to(scaled.device), out=stays)
        for cut in cuts:
            if cut.num_ties is not None:
                ties = np.flatnonzero(scaled[cut.row].cpu().numpy() == cut.value)
                weights[cut.row, torch.from_numpy(ties[cut.num_ties :]).to(weights.device)] = 0.0
    if any(p.min_p > 0.0 for p in params):
        # NOTE: the likeliest token's weight is exp(0) = 1 and has survived the cuts.
        floors = torch.tensor([[p.min_p] for p in params], dtype=torch.float32, device=scaled.device)
        weights *= torch.ge(weights, floors, out=stays)


def _find_cuts(scaled: torch.Tensor, weights: torch.Tensor, params: Sequence[SamplingParams]) -> list[_Cut]:
    """The cut of each row with top-k or top-p."""
    vocab_size = scaled.shape[1]
    top_ks = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    rows = [i for i, p in enumerate(params) if top_ks[i] < vocab_size or p.top_p < 1.0]
    if not rows:
        return []
    totals: list[float] = [1.0] * len(params)
    if any(p.top_p < 1.0 for p in params):
        totals = ChunkSums(weights).totals.tolist()
    short = [i for i in rows if top_ks[i] < SHORTLIST or top_ks[i] == vocab_size]
    cuts: list[_Cut] = []
    if short:
        num_values = max(top_ks[i] + 1 if top_ks[i] < vocab_size else SHORTLIST for i in short)
        cuts = _cut_rows(scaled, totals, params, short, min(num_values, vocab_size))
    rest = sorted(set(rows) - {cut.row for cut in cuts})
    if rest:
        cuts += _cut_rows(scaled, totals, params, rest, vocab_size)
    return cuts


def _cut_rows(
    scaled: torch.Tensor,
    totals: Sequence[float],
    params: Sequence[SamplingParams],
    rows: Sequence[int],
    num_values: int,
) -> list[_Cut]:
    """Cuts of `rows`, without those that do not end within their `num_values` largest values.

    totals: sum of weights of each row of the batch.

    NOTE: a cut is decided by values alone and their running sum from the largest down, so it does not depend on
    `num_values`, and hence not on the other rows of the batch.
    """
    vocab_size = scaled.shape[1]
    selected = scaled if len(rows) == len(scaled) else scaled[list(rows)]
    values = largest_values(selected, num_values)
    sums = torch.from_numpy(values).exp().double().cumsum(-1).numpy()
    cuts: list[_Cut] = []
    for row, row_values, row_sums in zip(rows, values, sums, strict=True):
        top_k, top_p = params[row].top_k, params[row].top_p
        length, total = vocab_size, totals[row]
        if 0 < top_k < vocab_size:
            length, total = top_k, float(row_sums[top_k - 1])
        if top_p < 1.0 and total > 0.0:
            # NOTE: a quotient, since with k equal tokens of n the share is then the float nearest to k/n, as p is.
            length = min(length, int(np.count_nonzero(row_sums / total < top_p)) + 1)
        if length >= num_values < vocab_size:
            continue
        value = row_values[length - 1]
        has_more_ties = length < vocab_size and row_values[length] == value and value > -np.inf
        num_ties = length - int(np.count_nonzero(row_values[:length] > value)) if has_more_ties else None
        cuts.append(_Cut(row, float(value), num_ties))
    return cuts
