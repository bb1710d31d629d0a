"""The table of tiles."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.tiles import DECODE_ROWS, INTERPRETER, Tile, attention_tile, device_of, family_of
from tests.kernels.test_compile import SHARED_LIMIT

CAPABILITIES = {"ampere": 80, "ada": 89, "hopper": 90, "blackwell": 100}
SHARED_PER_SM = {80: 164 << 10, 89: 100 << 10, 90: 228 << 10, 100: 228 << 10}
RESERVED = 1 << 10
"""Bytes of shared memory that a program takes for itself."""

SHAPES = [(head_dim, itemsize) for head_dim in (64, 128, 256) for itemsize in (2, 4)]


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ((8, 0), "ampere"),
        ((8, 6), "ada"),
        ((8, 7), "ampere"),
        ((8, 9), "ada"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((10, 3), "blackwell"),
        ((12, 0), "ada"),
    ],
)
def test_family(capability: tuple[int, int], family: str) -> None:
    assert family_of(*capability) == family


def test_devices_before_ampere_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"has 7\.5: choose the torch back end"):
        family_of(7, 5)


def test_the_interpreter_is_a_device() -> None:
    assert device_of(torch.device("cpu")) is INTERPRETER
    assert attention_tile("interpreter", 128, 4, True).rows == DECODE_ROWS


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize(("head_dim", "itemsize"), SHAPES)
@pytest.mark.parametrize("family", CAPABILITIES)
class TestTable:
    def test_sizes_are_what_triton_takes(self, family: str, head_dim: int, itemsize: int, decode: bool) -> None:
        tile = attention_tile(family, head_dim, itemsize, decode)
        for size in (tile.rows, tile.keys, tile.num_warps):
            assert math.log2(size).is_integer()
        assert min(tile.rows, tile.keys) >= 16
        assert not decode or tile.rows == DECODE_ROWS

    def test_programs_share_a_multiprocessor(self, family: str, head_dim: int, itemsize: int, decode: bool) -> None:
        tile = attention_tile(family, head_dim, itemsize, decode)
        taken = shared_memory(tile, head_dim, itemsize)
        assert taken <= SHARED_LIMIT[CAPABILITIES[family]]
        assert tile.programs_per_sm * (taken + RESERVED) <= SHARED_PER_SM[CAPABILITIES[family]]
        assert tile.programs_per_sm * tile.num_warps * 32 <= 1024


def shared_memory(tile: Tile, head_dim: int, itemsize: int) -> int:
    """At least what a program needs: its queries, and the tiles of keys and values in flight."""
    return (tile.rows + 2 * (tile.num_stages - 1) * tile.keys) * head_dim * itemsize


@pytest.mark.parametrize("head_dim", [1, 65, 80, 96, 129])
def test_a_head_between_two_sizes_takes_the_larger(head_dim: int) -> None:
    larger = next(size for size in (64, 128, 256) if size >= head_dim)
    assert attention_tile("hopper", head_dim, 2, True) == attention_tile("hopper", larger, 2, True)


def test_heads_that_no_tile_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="head_dim 512 is not supported"):
        attention_tile("hopper", 512, 2, False)
