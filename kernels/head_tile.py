"""How many heads of a token one program takes, in kernels that go through the heads of every token."""

from __future__ import annotations

from kernels.sizes import next_power_of_2

TILE = 1024
"""Elements of a program."""


def head_tile(num_heads: int, num_lanes: int) -> dict[str, int]:
    """The constants HEADS and LANES, powers of two: heads a program, and places for the elements of each."""
    lanes = next_power_of_2(num_lanes)
    return {"HEADS": min(next_power_of_2(num_heads), max(1, TILE // lanes)), "LANES": lanes}


def num_warps(tile: dict[str, int]) -> int:
    """16 bytes of a 16-bit type a thread."""
    return min(4, max(1, tile["HEADS"] * tile["LANES"] // 256))
