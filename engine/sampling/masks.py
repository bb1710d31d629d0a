"""Logit bias and the mask that keeps a sequence going until its minimum length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling.hooks import Target, flat_indices
from engine.sampling.row import SamplingRow


class LogitBias:
    """A logits hook: adds `params.logit_bias`. Ids beyond the vocabulary have no logit and are passed over."""

    def wants(self, row: SamplingRow) -> bool:
        return bool(row.params.logit_bias)

    def apply(self, logits: torch.Tensor, targets: Sequence[Target]) -> None:
        """Changes the targets' rows in place. logits: float32 (rows, vocab), contiguous."""
        vocab_size = logits.shape[1]
        known = [target.row.bias_ids < vocab_size for target in targets]
        ids = [target.row.bias_ids[k] for target, k in zip(targets, known, strict=True)]
        bias = np.concatenate([target.row.bias_values[k] for target, k in zip(targets, known, strict=True)])
        index = flat_indices(targets, ids, vocab_size)
        flat = logits.view(-1)
        flat[torch.from_numpy(index).to(logits.device)] += torch.from_numpy(bias).to(logits.device)


class MinTokensMask:
    """A logits hook: no EOS and no stop id while a sequence has fewer than `params.min_tokens` tokens.

    eos_token_ids: of the model. They are masked with `ignore_eos` too, as "no EOS before this many tokens" says no
    more than that.
    """

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)

    def wants(self, row: SamplingRow) -> bool:
        return row.is_below_min_tokens

    def apply(self, logits: torch.Tensor, targets: Sequence[Target]) -> None:
        """Changes the targets' rows in place. logits: float32 (rows, vocab), contiguous."""
        vocab_size = logits.shape[1]
        banned = [
            np.array(
                [i for i in (*self._eos_token_ids, *target.row.params.stop_token_ids) if i < vocab_size],
                dtype=np.int64,
            )
            for target in targets
        ]
        index = flat_indices(targets, banned, vocab_size)
        logits.view(-1)[torch.from_numpy(index).to(logits.device)] = -torch.inf
