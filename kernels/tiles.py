"""Tiles of the attention kernel: a small table, looked up on the host. Nothing is tuned at run time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

Family = Literal["ampere", "ada", "hopper", "blackwell", "interpreter"]


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program of the attention kernel works.

    rows: (query token, query head) pairs of one KV head that it takes, a power of two, at least 16.
    keys: keys of one turn of its loop, a power of two, at least 16.
    num_warps, num_stages: as Triton takes them. programs_per_sm: programs that share a multiprocessor.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    programs_per_sm: int


@dataclass(frozen=True, slots=True)
class Device:
    """What the choice of tiles and splits needs to know."""

    family: Family
    num_sms: int


DECODE_ROWS = 16
"""Query blocks of so few rows are decodes: they wait for memory, the others for the tensor cores."""

INTERPRETER = Device("interpreter", 1)
_INTERPRETER_TILES = {True: Tile(16, 64, 4, 1, 1), False: Tile(64, 64, 4, 1, 1)}

# By family and bytes of an element, then by head dim: decode, prefill.
# NOTE: where the table begins: decodes keep two or three tiles of keys and values in flight, 32 KiB each, in two
# programs a multiprocessor (one tile in float32 on hopper, where a third stage left a register spilled). Prefill takes
# the largest tile that leaves no register spilled, whatever the options of the kernel; tests/kernels/test_compile.py
# holds both.
_TABLE: dict[tuple[Family, int], dict[int, tuple[Tile, Tile]]] = {
    ("ampere", 2): {
        64: (Tile(16, 128, 4, 3, 2), Tile(128, 64, 8, 3, 1)),
        128: (Tile(16, 64, 4, 3, 2), Tile(128, 32, 8, 4, 1)),
        256: (Tile(16, 32, 4, 3, 2), Tile(64, 32, 8, 3, 1)),
    },
    ("ada", 2): {
        64: (Tile(16, 64, 4, 3, 2), Tile(128, 64, 8, 3, 1)),
        128: (Tile(16, 32, 4, 3, 2), Tile(128, 32, 8, 3, 1)),
        256: (Tile(16, 16, 4, 3, 2), Tile(64, 16, 8, 3, 1)),
    },
    ("hopper", 2): {
        64: (Tile(16, 128, 4, 4, 2), Tile(128, 64, 8, 4, 2)),
        128: (Tile(16, 64, 4, 4, 2), Tile(128, 64, 8, 3, 1)),
        256: (Tile(16, 32, 8, 4, 2), Tile(64, 32, 8, 3, 1)),
    },
    ("blackwell", 2): {
        64: (Tile(16, 128, 4, 4, 2), Tile(128, 64, 8, 4, 2)),
        128: (Tile(16, 64, 4, 4, 2), Tile(128, 64, 8, 3, 1)),
        256: (Tile(16, 32, 8, 4, 2), Tile(64, 32, 8, 3, 1)),
    },
    ("ampere", 4): {
        64: (Tile(16, 64, 4, 3, 2), Tile(64, 32, 8, 3, 1)),
        128: (Tile(16, 32, 4, 3, 2), Tile(32, 32, 8, 3, 1)),
        256: (Tile(16, 16, 8, 3, 2), Tile(16, 16, 8, 3, 2)),
    },
    ("ada", 4): {
        64: (Tile(16, 32, 4, 3, 2), Tile(64, 32, 8, 3, 1)),
        128: (Tile(16, 16, 4, 3, 2), Tile(32, 16, 8, 3, 1)),
        256: (Tile(16, 16, 8, 2, 1), Tile(16, 16, 8, 2, 1)),
    },
    ("hopper", 4): {
        64: (Tile(16, 64, 4, 3, 2), Tile(64, 32, 8, 3, 1)),
        128: (Tile(16, 32, 4, 2, 2), Tile(32, 32, 8, 3, 1)),
        256: (Tile(16, 16, 8, 3, 2), Tile(16, 16, 8, 3, 2)),
    },
    ("blackwell", 4): {
        64: (Tile(16, 64, 4, 3, 2), Tile(64, 32, 8, 3, 1)),
        128: (Tile(16, 32, 4, 3, 2), Tile(32, 32, 8, 3, 1)),
        256: (Tile(16, 16, 8, 3, 2), Tile(16, 16, 8, 3, 2)),
    },
}


def family_of(major: int, minor: int) -> Family:
    """The table's family of a compute capability. Raises RuntimeError before Ampere.

    The families differ in their matrix instructions and in shared memory: "ada" stands for all with 99 KiB a program.
    """
    if major < 8:
        raise RuntimeError(
            f"the Triton kernels need compute capability 8.0 or newer, this device has {major}.{minor}: "
            "choose the torch back end"
        )
    if (major, minor) in {(8, 0), (8, 7)}:
        return "ampere"
    if major == 9:
        return "hopper"
    return "blackwell" if major == 10 else "ada"


@lru_cache
def device_of(device: torch.device) -> Device:
    """What `device` is, a CUDA device; for the CPU, where Triton's interpreter runs the kernels, `INTERPRETER`."""
    if device.type == "cpu":
        return INTERPRETER
    properties = torch.cuda.get_device_properties(device)
    return Device(family_of(properties.major, properties.minor), properties.multi_processor_count)


def attention_tile(family: Family, head_dim: int, itemsize: int, decode: bool) -> Tile:
    """The tile for heads of up to `head_dim` elements of `itemsize` bytes; decode: query blocks of `DECODE_ROWS`.

    Raises ValueError for heads that no tile holds.
    """
    if family == "interpreter":
        return _INTERPRETER_TILES[decode]
    for largest, (for_decode, for_prefill) in _TABLE[family, itemsize].items():
        if head_dim <= largest:
            return for_decode if decode else for_prefill
    raise ValueError(f"head_dim {head_dim} is not supported by the Triton kernels: choose the torch back end")
