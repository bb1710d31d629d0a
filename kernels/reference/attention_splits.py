"""The sum of attention's partial results over segments of the keys, in plain torch."""

from __future__ import annotations

import torch


def reduce_splits(
    out: torch.Tensor,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    query_starts: torch.Tensor,
    num_seqs: int,
    num_splits: int,
) -> None:
    """As `kernels.attention_splits.reduce_splits`: out (T, num_heads, head_dim), up to query_starts[num_seqs].

    partial_out: (T, num_heads, num_splits, head_dim). partial_lse: (T, num_heads, num_splits), log2 of each segment's
    sum of exponentials; a segment of -inf has no keys, and counts for nothing whatever partial_out holds there.
    """
    num_rows = int(query_starts[num_seqs])
    lse = partial_lse[:num_rows, :, :num_splits]
    has_keys = lse > -torch.inf
    largest = lse.amax(2, keepdim=True)
    weights = torch.exp2(lse - largest).masked_fill(~has_keys, 0.0)
    parts = partial_out[:num_rows, :, :num_splits].masked_fill(~has_keys[..., None], 0.0)
    total = weights.sum(2).masked_fill(~has_keys.any(2), 1.0)
    out[:num_rows] = ((weights[..., None] * parts).sum(2) / total[..., None]).to(out.dtype)
