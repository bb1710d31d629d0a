"""The layers by our Triton kernels: the GPU's back end. Importing this module imports triton."""

from __future__ import annotations

from functools import partial

import torch

from engine.layers.activation import ACTIVATIONS, gate
from engine.layers.attention import AttentionBackend
from engine.layers.backend import Gate
from engine.layers.triton_attention import TritonAttention
from engine.layers.triton_norm import TritonHeadNorm, TritonRMSNorm
from kernels.silu_mul import silu_mul


class TritonBackend:
    """A `LayerBackend` on a CUDA device, and on the CPU under Triton's interpreter."""

    def __init__(self) -> None:
        self.triton_attention = TritonAttention()
        self.attention: AttentionBackend = self.triton_attention

    def norm(self, weight: torch.Tensor, eps: float) -> TritonRMSNorm:
        return TritonRMSNorm(weight, eps)

    def head_norm(self, weight: torch.Tensor, eps: float) -> TritonHeadNorm:
        return TritonHeadNorm(weight, eps)

    def gate(self, activation: str) -> Gate:
        """SiLU by a kernel of its own, the others, which few models have, by torch."""
        if activation in {"silu", "swish"}:
            return silu_mul
        return partial(gate, activation=ACTIVATIONS[activation])
