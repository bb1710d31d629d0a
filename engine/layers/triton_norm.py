"""Root-mean-square norms by Triton kernels."""

from __future__ import annotations

import torch

from kernels.rms_norm import add_rms_norm_, head_rms_norm, rms_norm


class TritonRMSNorm:
    """As `engine.layers.norm.RMSNorm`, with the residual add in the same kernel."""

    __slots__ = ("_eps", "_weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: (T, size). Returns a new tensor of the same shape and dtype."""
        return rms_norm(x, self._weight, self._eps)

    def add(self, residual: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Adds `update` to `residual` in place, and returns the norm of the sum. Both: (T, size)."""
        return add_rms_norm_(residual, update, self._weight, self._eps)


class TritonHeadNorm:
    """As `engine.layers.norm.HeadNorm`."""

    __slots__ = ("_eps", "_weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: (T, heads, head_dim). Returns a new dense tensor."""
        return head_rms_norm(x, self._weight, self._eps)
