"""Tile configurations of the attention kernels: a small table, looked up on the host. Nothing is tuned at run time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program of the attention kernel works.

    rows: (query token, query head) pairs of one KV head that a program takes, a power of two, at least 16.
    keys: keys of one turn of its loop, a power of two, at least 16.
    num_warps, num_stages: as Triton takes them. programs_per_sm: programs that fit a multiprocessor together.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    programs_per_sm: int


@dataclass(frozen=True, slots=True)
class Device:
    """What the choice of tiles and splits needs of a device. family: a key of the table."""

    family: str
    num_sms: int


INTERPRETER = Device("interpreter", 1)


@lru_cache
def device_of(device: torch.device) -> Device:
    """The description of a CUDA device; of the CPU, where kernels run under Triton's interpreter."""
    if device.type == "cpu":
        return INTERPRETER
    properties = torch.cuda.get_device_properties(device)
    return Device(family_of(properties.major, properties.minor), properties.multi_processor_count)


def family_of(major: int, minor: int) -> str:
    """The table's family of a compute capability. Raises RuntimeError for devices before Ampere."""
    if major < 8:
        raise RuntimeError(
            f"the Triton kernels need compute capability 8.0 or newer, this device has {major}.{minor}: "
            "use the torch attention back end"
        )
    if (major, minor) == (8, 0):
        return "ampere"
    return {9: "hopper", 10: "blackwell"}.get(major, "ada")


def attention_tile(family: str, head_dim: int, itemsize: int, rows: int) -> Tile:
    """The tile for query blocks of up to `rows` rows (query tokens times query heads of a KV head).

    head_dim: a power of two. itemsize: bytes of an element of the cache.
    """
    return Tile(16 if rows <= 16 else 64, 64 if itemsize == 2 else 32, 4, 2, 2)
