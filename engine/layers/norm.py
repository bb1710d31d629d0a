"""Root-mean-square layer norm (arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch.nn import functional


class RMSNorm:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension; the mean is taken in float32.

    weight: (size) in the model's dtype.
    """

    __slots__ = ("_eps", "_shape", "_weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight
        self._shape = (weight.shape[-1],)
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: (..., size). Returns a new tensor of the same shape and dtype."""
        return functional.rms_norm(x, self._shape, self._weight, self._eps)

    def add(self, residual: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Adds `update` to `residual` in place, and returns the norm of the sum. Both: (T, size)."""
        return functional.rms_norm(residual.add_(update), self._shape, self._weight, self._eps)


class HeadNorm:
    """RMS norm over each head's own dimensions, with a weight a head, for heads of different kinds in one pass.

    weight: (heads, head_dim).
    """

    __slots__ = ("_eps", "_shape", "_weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight
        self._shape = (weight.shape[-1],)
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: (T, heads, head_dim). Returns a new dense tensor."""
        return functional.rms_norm(x, self._shape, None, self._eps).mul_(self._weight)
