"""Drawing one token a row by inverse transform."""

from __future__ import annotations

import torch

_CHUNK = 128


class ChunkSums:
    """Sums of weights over runs of 128 tokens, the coarse level of the cumulative distribution.

    sums: float64 (rows, chunks), running sums over the chunks; the last column is the rows' total.

    NOTE: a row's sums come from that row alone in a fixed order, whatever the number of rows and threads: each
    output of the reduction is computed by one thread over 128 neighbours. A reduction over the whole vocabulary would
    be split among threads when there is only one row, and round differently.
    """

    __slots__ = ("sums", "weights")

    def __init__(self, weights: torch.Tensor) -> None:
        self.weights = weights
        vocab_size = weights.shape[1]
        whole = vocab_size - vocab_size % _CHUNK
        parts = []
        if whole:
            parts.append(weights[:, :whole].view(len(weights), -1, _CHUNK).sum(-1))
        if whole < vocab_size:
            parts.append(weights[:, whole:].sum(-1, keepdim=True))
        self.sums = torch.cat(parts, dim=1).double().cumsum(-1)

    @property
    def totals(self) -> torch.Tensor:
        """float64 (rows)."""
        return self.sums[:, -1]

    def draw(self, uniforms: torch.Tensor) -> torch.Tensor:
        """The token at each row's quantile. uniforms: float64 (rows) in [0, 1); returns int64 (rows).

        NOTE: inverse transform rather than Gumbel-max: it needs one random number a row instead of one a token, and
        the two-level sum makes it one pass over the weights. The order of the tokens on the line does not matter, so
        they need no sorting. A token of weight 0 does not move the running sum and is never drawn; if rounding puts
        the quantile past the last sum, the last token that moved it is taken. A row of zeros gives token 0.
        """
        target = (uniforms * self.totals).unsqueeze(1)
        chunk = _first_above(self.sums, target)
        before = torch.where(chunk > 0, self.sums.gather(1, (chunk - 1).clamp_(min=0)), 0.0)
        first = chunk * _CHUNK
        ids = first + torch.arange(_CHUNK, device=first.device)
        last_id = self.weights.shape[1] - 1
        inside = self.weights.gather(1, ids.clamp(max=last_id)).double().masked_fill_(ids > last_id, 0.0)
        return (first + _first_above(inside.cumsum(-1), target - before)).squeeze(1).clamp_(max=last_id)


def _first_above(running_sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """First place where the sums exceed the target, or else where they first reach their end. int64 (rows, 1)."""
    above = (running_sums <= target).sum(-1, keepdim=True)
    end = (running_sums < running_sums[:, -1:]).sum(-1, keepdim=True)
    return torch.minimum(above, end)
