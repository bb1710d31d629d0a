"""Presence, frequency and repetition penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling.hooks import Target, flat_indices
from engine.sampling.row import SamplingRow
from engine.sampling.token_counts import TokenCounts


class Penalties:
    """A logits hook: lowers the logits of tokens seen before, touching only those.

    Repetition first, over prompt and generated tokens: a positive logit is divided by the penalty, a negative one
    multiplied (CTRL, arXiv:1909.05858, section 4.1, in the form for logits of either sign). Then
    `logit −= count * frequency_penalty + (count > 0) * presence_penalty` over generated tokens (OpenAI API reference,
    "frequency and presence penalties").
    """

    def wants(self, row: SamplingRow) -> bool:
        return row.counts is not None

    def apply(self, logits: torch.Tensor, targets: Sequence[Target]) -> None:
        """Updates the rows' counts and changes their logits in place. logits: float32 (rows, vocab), contiguous."""
        all_counts: list[TokenCounts] = []
        for target in targets:
            assert target.row.counts is not None
            target.row.counts.update()
            all_counts.append(target.row.counts)
        lengths = [len(counts.token_ids) for counts in all_counts]
        flat = logits.view(-1)
        index = flat_indices(targets, [counts.token_ids for counts in all_counts], logits.shape[1])
        where = torch.from_numpy(index).to(logits.device)

        def per_token(values: list[float]) -> torch.Tensor:
            return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), lengths)).to(logits.device)

        params = [target.row.params for target in targets]
        counts = torch.from_numpy(np.concatenate([counts.counts for counts in all_counts])).to(logits.device)
        repetition = per_token([p.repetition_penalty for p in params])
        frequency = per_token([p.frequency_penalty for p in params])
        presence = per_token([p.presence_penalty for p in params])
        seen = flat[where]
        seen = torch.where(seen > 0, seen / repetition, seen * repetition)
        flat[where] = seen - counts * frequency - (counts > 0) * presence
