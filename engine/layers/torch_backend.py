"""The layers in plain torch: the CPU's back end."""

from __future__ import annotations

from functools import partial

import torch

from engine.layers.activation import ACTIVATIONS, gate
from engine.layers.attention import AttentionBackend
from engine.layers.backend import Gate
from engine.layers.norm import HeadNorm, RMSNorm
from engine.layers.torch_attention import TorchAttention


class TorchBackend:
    """A `LayerBackend` of torch's own operations. attention: None takes `TorchAttention`."""

    def __init__(self, attention: AttentionBackend | None = None) -> None:
        self.attention: AttentionBackend = attention or TorchAttention()

    def norm(self, weight: torch.Tensor, eps: float) -> RMSNorm:
        return RMSNorm(weight, eps)

    def head_norm(self, weight: torch.Tensor, eps: float) -> HeadNorm:
        return HeadNorm(weight, eps)

    def gate(self, activation: str) -> Gate:
        return partial(gate, activation=ACTIVATIONS[activation])
