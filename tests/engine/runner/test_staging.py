"""Packed copies, and the ring that they leave from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from engine.runner.accelerator import HostAccelerator
from engine.runner.staging import ALIGNMENT, NUM_SLOTS, StagedMemory, as_int64, pack, packed_bytes

SPEC = [(torch.int64, 3), (torch.int32, 5), (torch.int32, 0), (torch.int64, 1)]


class SlowEvent:
    """An event whose copy ends only when somebody waits for it."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def record(self) -> None:
        self.log.append(f"record {self.name}")

    def synchronize(self) -> None:
        self.log.append(f"wait {self.name}")


class LoggingAccelerator(HostAccelerator):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.buffers: list[torch.Tensor] = []

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        self.buffers.append(super().host_buffer(num_bytes))
        return self.buffers[-1]

    def event(self) -> SlowEvent:
        return SlowEvent(self.log, str(len(self.buffers) - 1))


def test_fields_are_aligned_and_apart() -> None:
    fields = pack(SPEC)
    assert all(field.offset % ALIGNMENT == 0 for field in fields)
    assert all(before.end <= after.offset for before, after in itertools.pairwise(fields))
    assert packed_bytes(SPEC) == fields[-1].end
    assert packed_bytes([]) == 0


def test_every_field_arrives() -> None:
    staged = StagedMemory(HostAccelerator(), packed_bytes(SPEC))
    fields = pack(SPEC)
    arrays = [as_int64([1, 2, 3]), np.arange(5, dtype=np.int32), np.zeros(0, dtype=np.int32), as_int64([-9])]
    staged.send(fields, arrays)
    for field, array in zip(fields, arrays, strict=True):
        view = staged.view(field)
        assert view.dtype == field.dtype
        assert view.tolist() == array.tolist()
        assert view.data_ptr() == staged.view(field).data_ptr()


def test_an_array_may_be_shorter_than_its_field_but_not_longer() -> None:
    staged = StagedMemory(HostAccelerator(), 64)
    (field,) = pack([(torch.int64, 2)])
    staged.send([field], [as_int64([5])])
    assert staged.view(field)[0] == 5
    with pytest.raises(AssertionError):
        staged.send([field], [as_int64([5, 6, 7])])


def test_an_array_can_be_changed_once_it_is_sent() -> None:
    staged = StagedMemory(HostAccelerator(), 64)
    (field,) = pack([(torch.int64, 2)])
    array = as_int64([5, 6])
    staged.send([field], [array])
    array[:] = 0
    assert staged.view(field).tolist() == [5, 6]


def test_a_buffer_is_written_anew_only_after_its_copy() -> None:
    """Each slot: wait for its last copy, write, copy, record; the slots take turns."""
    accelerator = LoggingAccelerator()
    staged = StagedMemory(accelerator, 64)
    (field,) = pack([(torch.int64, 1)])
    for value in range(NUM_SLOTS + 2):
        staged.send([field], [as_int64([value])])
        held = [buffer[:8].view(torch.int64).item() for buffer in accelerator.buffers]
        assert held[value % NUM_SLOTS] == value
    order = [str(i % NUM_SLOTS) for i in range(NUM_SLOTS + 2)]
    assert accelerator.log == [entry for slot in order for entry in (f"wait {slot}", f"record {slot}")]
