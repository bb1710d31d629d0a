"""Plain-torch twins of `kernels.penalties`."""

from __future__ import annotations

import torch

from kernels.row_parameters import SEEN_IN_PROMPT, Column


def apply_penalties_(
    logits: torch.Tensor, counts: torch.Tensor, parameters: torch.Tensor, row_indices: torch.Tensor
) -> None:
    """As `kernels.penalties.apply_penalties_`."""
    seen = counts[row_indices]
    generated = seen & (SEEN_IN_PROMPT - 1)
    own = parameters[row_indices].float()
    repetition, frequency, presence = (
        own[:, column].unsqueeze(1) for column in (Column.REPETITION, Column.FREQUENCY, Column.PRESENCE)
    )
    changed = torch.where(logits > 0, logits / repetition, logits * repetition)
    changed = changed - generated * frequency - (generated > 0) * presence
    logits.copy_(torch.where((seen != 0) & _is_wanted(own), changed, logits))


def count_tokens_(
    counts: torch.Tensor, parameters: torch.Tensor, row_indices: torch.Tensor, token_ids: torch.Tensor
) -> None:
    """As `kernels.penalties.count_tokens_`."""
    added = _is_wanted(parameters[row_indices].float()).squeeze(1).int()
    counts.index_put_((row_indices, token_ids), added, accumulate=True)


def _is_wanted(own: torch.Tensor) -> torch.Tensor:
    """bool (R, 1). own: the rows' parameters."""
    is_on = (own[:, Column.REPETITION] != 1.0) | (own[:, Column.FREQUENCY] != 0.0) | (own[:, Column.PRESENCE] != 0.0)
    return is_on.unsqueeze(1)
