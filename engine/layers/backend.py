"""The seam between models and the code that computes their layers: one choice for a whole model, made by the runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from engine.layers.attention import AttentionBackend

Gate = Callable[[torch.Tensor], torch.Tensor]
"""activation(gate) · up. Takes (T, 2 · inner), the gate first; returns (T, inner)."""

HeadNormMethod = Callable[[torch.Tensor], torch.Tensor]
"""The norm over each head's own dimensions. Takes (T, heads, head_dim); returns a new dense tensor of that shape."""


class NormMethod(Protocol):
    """RMS norm over the last dimension, with its weight."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: (T, size). Returns a new tensor."""
        ...

    def add(self, residual: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Adds `update` to `residual` in place, and returns the norm of the sum. Both: (T, size)."""
        ...


class LayerBackend(Protocol):
    """Makes the layers of a model that have more than one implementation (linear layers have a seam of their own).

    attention: shared by all layers.
    """

    attention: AttentionBackend

    def norm(self, weight: torch.Tensor, eps: float) -> NormMethod:
        """weight: (size)."""
        ...

    def head_norm(self, weight: torch.Tensor, eps: float) -> HeadNormMethod:
        """weight: (heads, head_dim)."""
        ...

    def gate(self, activation: str) -> Gate:
        """activation: a key of `engine.layers.activation.ACTIVATIONS`."""
        ...
