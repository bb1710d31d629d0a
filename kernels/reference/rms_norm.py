"""Root-mean-square norms (arXiv:1910.07467) in plain torch."""

from __future__ import annotations

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight. x: (T, size); weight: (size). Returns a new tensor."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm_(residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds `update` to `residual` in place, and returns the norm of the sum. Both: (T, size)."""
    return functional.rms_norm(residual.add_(update), weight.shape, weight, eps)


def head_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm over each head's own dimensions, times a weight a head. x: (T, heads, head_dim). A new tensor."""
    return functional.rms_norm(x, weight.shape[1:], None, eps).mul_(weight)
