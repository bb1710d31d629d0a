"""`benchmarks.gpu.tile_candidates`: what the sweep tries."""

from __future__ import annotations

import pytest

from benchmarks.gpu.tile_candidates import GROUPS, Group, candidates, least_shared, programs_per_sm
from kernels.tiles import DECODE_ROWS, Tile, attention_tile


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.head_dim}-{group.decode}")
def test_candidates_are_tiles_of_the_kind_that_the_table_has(group: Group) -> None:
    tiles = list(candidates(group))
    assert len(set(tiles)) == len(tiles) >= 10
    assert all((tile.rows == DECODE_ROWS) == group.decode for tile in tiles)
    own = attention_tile("hopper", group.head_dim, 2, group.decode)
    assert any(tile.rows == own.rows and tile.keys == own.keys for tile in tiles)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.head_dim}-{group.decode}")
def test_loads_are_those_of_one_entry_of_the_table(group: Group) -> None:
    assert {load.heads.head_dim for load in group.loads} == {group.head_dim}
    assert {load.decode for load in group.loads} == {group.decode}
    assert len({str(load) for load in group.loads}) == len(group.loads)


def test_shared_memory_bounds_the_programs_of_a_multiprocessor() -> None:
    tile = Tile(16, 64, 4, 4, 1)
    assert least_shared(tile, 128) == (16 + 2 * 3 * 64) * 128 * 2
    assert programs_per_sm(tile, True, 104_448, 233_472) == 2
    assert programs_per_sm(tile, True, 300_000, 233_472) == 1


@pytest.mark.parametrize(
    ("num_warps", "decode", "programs"), [(4, True, 4), (8, True, 2), (4, False, 2), (8, False, 1)]
)
def test_registers_bound_them_as_well(num_warps: int, decode: bool, programs: int) -> None:
    assert programs_per_sm(Tile(16, 16, num_warps, 2, 1), decode, 1000, 233_472) == programs
