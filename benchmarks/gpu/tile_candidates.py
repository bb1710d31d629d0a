"""What the sweep of the attention kernel's tiles tries, and on which batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from benchmarks.gpu.paged_batch import LLAMA_8B, QWEN_05B, Heads
from kernels.tiles import DECODE_ROWS, Tile

ITEMSIZE = 2
"""Bytes of an element: the sweep is of bfloat16."""
RESERVED = 1 << 10
"""Bytes of shared memory that a program takes for itself (CUDA C++ Programming Guide, technical specifications)."""


@dataclass(frozen=True, slots=True)
class Load:
    """A batch of equal sequences: one new token each (decode), or nothing but new tokens."""

    heads: Heads
    batch: int
    num_keys: int
    decode: bool

    def __str__(self) -> str:
        kind = "decode" if self.decode else "prefill"
        return f"{kind} {self.heads}, {self.batch} x {self.num_keys}"


@dataclass(frozen=True, slots=True)
class Group:
    """The loads that one entry of the table serves."""

    head_dim: int
    decode: bool
    loads: tuple[Load, ...]


def _group(decode: bool, *heads: Heads) -> Group:
    sizes = product((32, 256), (2048, 8192)) if decode else ((4, 2048), (1, 8192))
    loads = tuple(Load(one, batch, num_keys, decode) for batch, num_keys in sizes for one in heads)
    return Group(heads[0].head_dim, decode, loads)


GROUPS = (
    _group(True, LLAMA_8B, Heads(64, 8, 128)),
    _group(False, LLAMA_8B),
    _group(True, QWEN_05B, Heads(32, 8, 64), Heads(64, 8, 64)),
    _group(False, Heads(32, 8, 64)),
    _group(True, Heads(16, 4, 256), Heads(8, 1, 256)),
    _group(False, Heads(16, 4, 256)),
)
"""The most common size of heads comes first, should time run out."""
SMOKE_GROUPS = (
    Group(16, True, (Load(Heads(4, 2, 16), 2, 20, True),)),
    Group(16, False, (Load(Heads(4, 2, 16), 1, 24, False),)),
)


def candidates(group: Group, *, is_smoke: bool = False) -> Iterator[Tile]:
    """Tiles to try beside the table's, `programs_per_sm` left at 1.

    Left out are those whose accumulators and scores alone need more than 224 registers a thread: they spill.
    """
    rows = (DECODE_ROWS,) if group.decode else (64, 128)
    sizes = (rows, (32, 64, 128), (4, 8), (2, 3, 4, 5) if group.decode else (2, 3, 4))
    if is_smoke:
        sizes = (rows[:1], (16, 32), (4,), (2,))
    for num_rows, keys, num_warps, num_stages in product(*sizes):
        if num_rows * (keys + group.head_dim) / (num_warps * 32) <= 224:
            yield Tile(num_rows, keys, num_warps, num_stages, 1)


def least_shared(tile: Tile, head_dim: int) -> int:
    """Bytes of shared memory that a program needs at least: its queries, and the tiles of keys and values in flight."""
    return (tile.rows + 2 * (tile.num_stages - 1) * tile.keys) * head_dim * ITEMSIZE


def programs_per_sm(tile: Tile, decode: bool, shared: int, shared_of_sm: int) -> int:
    """How many programs a multiprocessor holds, of 65,536 registers. shared: bytes of one, as compiled.

    Decodes are taken to need 128 registers a thread at most, prefills all 255 there are.
    """
    by_registers = (16 if decode else 8) // tile.num_warps
    return max(1, min(by_registers, shared_of_sm // (shared + RESERVED)))
