from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner.device_memory import CudaMemory, device_budget
from engine.runner.memory import choose_num_blocks

GIB = 1 << 30


class Memory:
    def __init__(self, total: int, free_at_start: int, free: int) -> None:
        self.total, self.free_at_start, self._free = total, free_at_start, free

    def free(self) -> int:
        return self._free

    def peak_of(self, run: Callable[[], None]) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("memory", "work_space", "provisional", "expected"),
    [
        # 72 of 80 GiB, less 20 of weights and graphs.
        (Memory(80 * GIB, 80 * GIB, 60 * GIB), 0, 0, 52 * GIB),
        # The work space is free at the moment, but not to be had, and a little more of it.
        (Memory(80 * GIB, 80 * GIB, 60 * GIB), 2 * GIB, 0, 50 * GIB - 2 * GIB // 20),
        # The blocks that were there to measure are given back.
        (Memory(80 * GIB, 80 * GIB, 60 * GIB), 0, GIB, 53 * GIB),
        # Others hold 30 GiB: what they leave bounds the share.
        (Memory(80 * GIB, 50 * GIB, 30 * GIB), 0, 0, 30 * GIB),
    ],
)
def test_budget(memory: Memory, work_space: int, provisional: int, expected: int) -> None:
    assert device_budget(memory, 0.9, work_space, provisional).num_bytes == expected


def test_a_model_that_leaves_no_room_is_refused_with_the_figures() -> None:
    budget = device_budget(Memory(16 * GIB, 15 * GIB, GIB), 0.9, 2 * GIB, 0)
    with pytest.raises(
        ConfigError,
        match=r"=0\.9 of 16384 MiB.*14336 MiB of weights.*2048 MiB of work.*memory_utilization higher",
    ):
        choose_num_blocks(EngineConfig(model_dir="m"), GIB, lambda: budget)


def test_a_cuda_device_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = {"now": 3 * GIB, "peak": 0}
    for name in ("init", "empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: allocated["now"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: allocated.update(peak=allocated["now"]))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: allocated["peak"])
    memory = CudaMemory()
    assert (memory.total, memory.free_at_start, memory.free()) == (80 * GIB, 70 * GIB, 70 * GIB)
    assert memory.peak_of(lambda: allocated.update(peak=5 * GIB)) == 2 * GIB
