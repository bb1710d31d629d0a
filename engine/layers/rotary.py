"""Rotary position embedding (RoFormer, arXiv:2104.09864), with halves rotated as GPT-NeoX does."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from engine.layers.rope_parameters import RopeParameters


@dataclass(frozen=True, slots=True)
class Rotation:
    """Angles of one flat batch, looked up once a forward. cos, sin: (T, 1, head_dim) in the model's dtype, strided.

    The first half of sin is negated: x·cos + swap_halves(x)·sin is the rotation.
    """

    cos: torch.Tensor
    sin: torch.Tensor


class RotaryEmbedding:
    """Table of cos and sin for positions 0 .. max_positions − 1."""

    def __init__(
        self,
        parameters: RopeParameters,
        head_dim: int,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        """device: of the table; None is the CPU."""
        # NOTE: float32 up to the sines, for the angles of far positions need the bits; and computed on the CPU, so
        # that every device has the same ones.
        angles = torch.outer(
            torch.arange(max_positions, dtype=torch.float32), inverse_frequencies(parameters, head_dim)
        )
        cos, sin = angles.cos().mul_(parameters.attention_factor), angles.sin().mul_(parameters.attention_factor)
        self._table = torch.stack((cos, cos, -sin, sin), dim=1).view(max_positions, 2, head_dim).to(dtype).to(device)
        """(max_positions, 2, head_dim): what `Rotation` calls cos, then sin."""
        self.max_positions = max_positions

    def lookup(self, positions: torch.Tensor) -> Rotation:
        """positions: int64 (T), each below max_positions."""
        cos, sin = self._table.index_select(0, positions).chunk(2, dim=1)
        return Rotation(cos, sin)


def rotate_(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotates x, (T, heads, head_dim), in place, and returns it. x may be a strided view; its last dim is dense."""
    num_tokens, num_heads, head_dim = x.shape
    swapped = x.view(num_tokens, num_heads, 2, head_dim // 2).flip(2).view(x.shape)
    return x.mul_(rotation.cos).addcmul_(swapped, rotation.sin)


def inverse_frequencies(parameters: RopeParameters, head_dim: int) -> torch.Tensor:
    """Radians a position, float32 (head_dim / 2), highest frequency first."""
    powers = parameters.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    frequencies = 1.0 / powers
    if parameters.kind == "linear":
        frequencies = frequencies / parameters.factor
    elif parameters.kind == "llama3":
        frequencies = _llama3(frequencies, parameters)
    elif parameters.kind == "yarn":
        frequencies = _yarn(powers, parameters, head_dim)
    if parameters.frequency_divisors is not None:
        frequencies = frequencies / torch.tensor(parameters.frequency_divisors, dtype=torch.float32)
    return frequencies


def _llama3(frequencies: torch.Tensor, parameters: RopeParameters) -> torch.Tensor:
    """Llama 3.1: long waves are stretched, short ones kept, those between blended linearly in their frequency."""
    turns = parameters.original_max_position_embeddings / (2 * math.pi / frequencies)
    low, high = parameters.low_freq_factor, parameters.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / parameters.factor + kept * frequencies


def _yarn(powers: torch.Tensor, parameters: RopeParameters, head_dim: int) -> torch.Tensor:
    """YaRN's "NTK by parts": dimensions below `low` keep their frequency, those above `high` are stretched."""

    def dimension_of(turns: float) -> float:
        # The (fractional) dimension whose wave makes `turns` turns over the trained context.
        wave = parameters.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(wave) / (2 * math.log(parameters.theta))

    low, high = dimension_of(parameters.beta_fast), dimension_of(parameters.beta_slow)
    if parameters.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 / (parameters.factor * powers)) * stretched + (1.0 / powers) * (1 - stretched)
