"""Parameters of the rotary position embedding (no torch: read together with a model's configuration)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """How positions turn into rotation angles.

    theta: base of the geometric series of frequencies (RoFormer, arXiv:2104.09864).
    factor: how many times the trained context is stretched ("linear", "llama3", "yarn").
    original_max_position_embeddings: positions of the trained context ("llama3", "yarn").
    low_freq_factor, high_freq_factor: bounds of the blend of Llama 3.1.
    beta_fast, beta_slow, truncate, attention_factor: of YaRN (arXiv:2309.00071); attention_factor multiplies cos and
        sin, so that q·k is scaled by its square.
    frequency_divisors: head_dim / 2 numbers that divide the frequencies after everything else (the tensor
        `rope_freqs.weight` of a GGUF file), or None.
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    frequency_divisors: tuple[float, ...] | None = None


def yarn_temperature(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies cos and sin by for a context stretched by `factor` (arXiv:2309.00071, equation 22)."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0
