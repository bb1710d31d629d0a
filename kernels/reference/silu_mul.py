"""SiLU(gate) · up (arXiv:2002.05202) in plain torch."""

from __future__ import annotations

import torch
from torch.nn import functional


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: (T, 2 · inner), the gate first. Returns (T, inner)."""
    gates, ups = gate_up.chunk(2, dim=-1)
    return functional.silu(gates).mul_(ups)
