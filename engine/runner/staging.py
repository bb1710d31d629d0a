"""Host memory from which copies to the device run while the host goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.runner.accelerator import Accelerator, Event
from engine.runner.step_layout import Int32Array, Int64Array

Array = Int64Array | Int32Array

ALIGNMENT = 64
"""Bytes. NOTE: Triton compiles a kernel anew for a pointer that is not divisible by 16."""
NUM_SLOTS = 4
"""Copies that may be on their way before the host waits for the oldest: a step has two at most, and two steps run."""


@dataclass(frozen=True, slots=True)
class Field:
    """An array inside a packed copy: `count` elements of `dtype`, `offset` bytes from its start."""

    dtype: torch.dtype
    count: int
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.count * self.dtype.itemsize


def pack(spec: Sequence[tuple[torch.dtype, int]]) -> tuple[Field, ...]:
    """Fields one behind the other. spec: (dtype, count) of each."""
    fields: list[Field] = []
    end = 0
    for dtype, count in spec:
        field = Field(dtype, count, -(-end // ALIGNMENT) * ALIGNMENT)
        fields.append(field)
        end = field.end
    return tuple(fields)


def packed_bytes(spec: Sequence[tuple[torch.dtype, int]]) -> int:
    """Bytes of `pack(spec)`, up to the end of its last field."""
    return max((field.end for field in pack(spec)), default=0)


class _Slot:
    def __init__(self, memory: torch.Tensor, copied: Event) -> None:
        self.memory = memory
        self.array = memory.numpy()
        self.copied = copied


class StagedMemory:
    """Device memory that one copy fills, from a ring of host buffers.

    NOTE: a buffer is written anew only when the copy out of it is over, so the host may be `NUM_SLOTS` copies ahead.
    The device memory is one and the same for all copies: they run in the order of the other work, so each waits for
    the readers of the one before.
    """

    def __init__(self, accelerator: Accelerator, num_bytes: int) -> None:
        """num_bytes: of the largest copy."""
        self._slots = [_Slot(accelerator.host_buffer(num_bytes), accelerator.event()) for _ in range(NUM_SLOTS)]
        self._next = 0
        self.memory = torch.zeros(num_bytes, dtype=torch.uint8, device=accelerator.device)
        """uint8 (num_bytes)."""

    def send(self, fields: Sequence[Field], arrays: Sequence[Array]) -> None:
        """Starts the copy of the arrays into their fields. Each array fills the front of its field, and may be reused
        when this returns; what it does not fill is not defined."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % NUM_SLOTS
        slot.copied.synchronize()
        for field, array in zip(fields, arrays, strict=True):
            assert len(array) <= field.count
            last = field.offset + array.nbytes
            slot.array[field.offset : last].view(array.dtype)[:] = array
        end = max(field.end for field in fields)
        self.memory[:end].copy_(slot.memory[:end], non_blocking=True)
        slot.copied.record()

    def view(self, field: Field) -> torch.Tensor:
        """The field on the device: its memory is the same for the same field."""
        return self.memory[field.offset : field.end].view(field.dtype)


def as_int64(values: Sequence[int]) -> Int64Array:
    return np.asarray(values, dtype=np.int64)
