"""Gated activations of the MLP (arXiv:2002.05202)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
"""By the name that config.json gives in `hidden_act`."""


def gate(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """activation(gate) · up. gate_up: (T, 2 · inner), the gate first. Returns (T, inner)."""
    gates, ups = gate_up.chunk(2, dim=-1)
    return activation(gates).mul_(ups)
