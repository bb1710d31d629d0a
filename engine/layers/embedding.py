"""Token embedding."""

from __future__ import annotations

import torch
from torch.nn import functional


class Embedding:
    """Rows of a table by token id. weight: (vocab_size, hidden_size)."""

    __slots__ = ("weight",)

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """input_ids: int64 (T). Returns a new tensor, (T, hidden_size)."""
        return functional.embedding(input_ids, self.weight)
