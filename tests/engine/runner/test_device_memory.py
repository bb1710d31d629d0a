"""Whose memory is whose on a GPU, and how much of it the KV pool gets."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner.device_memory import (
    CONTEXT_BYTES,
    DRIVER_BYTES,
    SPARE_BYTES,
    CudaMemory,
    check_share,
    device_budget,
)
from engine.runner.memory import choose_num_blocks

MIB = 1 << 20
GIB = 1 << 30


class Memory:
    """A GPU of 80 GiB on which this process has a context of 400 MiB, and others hold what is given."""

    total = 80 * GIB

    def __init__(self, others: int = 0, others_later: int | None = None, taken: int = 0, driver: int = 0) -> None:
        self.free_at_start = self.total - 400 * MIB - others
        self._taken = taken
        self._free = self.total - 400 * MIB - (others if others_later is None else others_later) - taken - driver

    def free(self) -> int:
        return self._free

    def taken(self) -> int:
        return self._taken

    def peak_of(self, run: Callable[[], None]) -> int:
        raise NotImplementedError


def pool(memory: Memory, utilization: float = 0.9, work_space: int = 0, provisional: int = 0) -> int:
    """Bytes for the pool, and the spare bytes that every budget keeps."""
    check_share(memory, utilization)
    return device_budget(memory, utilization, work_space, provisional).num_bytes + SPARE_BYTES


@pytest.mark.parametrize(
    ("memory", "work_space", "provisional", "expected"),
    [
        # 72 of 80 GiB, less the context, 20 of weights and graphs, and what the driver took beside them.
        (Memory(taken=20 * GIB), 0, 0, 52 * GIB - 400 * MIB),
        (Memory(taken=20 * GIB, driver=300 * MIB), 0, 0, 52 * GIB - 700 * MIB),
        # The work space is free at the moment, but not to be had, and a little more of it.
        (Memory(taken=20 * GIB), 2 * GIB, 0, 50 * GIB - 400 * MIB - 2 * GIB // 20),
        # The blocks that were there to measure are given back.
        (Memory(taken=20 * GIB), 0, GIB, 53 * GIB - 400 * MIB),
        # A desktop's memory is not the engine's: of it no more than a context counts.
        (Memory(others=4 * GIB, taken=20 * GIB), 0, 0, 52 * GIB - CONTEXT_BYTES),
    ],
)
def test_budget(memory: Memory, work_space: int, provisional: int, expected: int) -> None:
    assert pool(memory, 0.9, work_space, provisional) == expected


def test_two_engines_share_a_gpu() -> None:
    """The second one gets as much as the first, whose memory is not its own."""
    first = pool(Memory(taken=15 * GIB), 0.45)
    assert first == 36 * GIB - 15 * GIB - 400 * MIB
    second = pool(Memory(others=36 * GIB, taken=15 * GIB), 0.45)
    assert second == 36 * GIB - 15 * GIB - CONTEXT_BYTES


def test_two_engines_that_start_together_do_not_count_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """What the other loads meanwhile is nobody's growth but its own, up to what a driver may take unseen."""
    alone = pool(Memory(taken=15 * GIB, driver=200 * MIB), 0.45)
    with caplog.at_level(logging.WARNING):
        beside = pool(Memory(others=0, others_later=16 * GIB, taken=15 * GIB, driver=200 * MIB), 0.45)
    assert alone - beside == DRIVER_BYTES - 200 * MIB
    assert "other processes took about 16584 MiB of the GPU while this one loaded" in caplog.text


def test_an_engine_that_ends_meanwhile_leaves_nothing_to_this_one() -> None:
    assert pool(Memory(others=30 * GIB, others_later=0, taken=15 * GIB), 0.6) == 33 * GIB - CONTEXT_BYTES


def test_a_share_that_is_not_free_is_refused_with_what_to_set() -> None:
    memory = Memory(others=30 * GIB)
    message = (
        r"=0\.9 is 73728 MiB of the GPU's 81920, and 50800 MiB are free: 30608 MiB are held by other processes"
        r".*or to share the GPU with them, set memory_utilization to 0\.62 or less"
    )
    with pytest.raises(ConfigError, match=message):
        check_share(memory, 0.9)
    check_share(memory, 0.62)
    with pytest.raises(ConfigError, match=r"end them, or use another GPU"):
        check_share(Memory(others=80 * GIB - 800 * MIB), 0.3)


def test_all_of_a_gpu_can_be_asked_for() -> None:
    assert pool(Memory(taken=20 * GIB, driver=GIB), 1.0) == 59 * GIB - 400 * MIB


def test_memory_that_went_while_the_model_loaded_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"others have left 9\d{3} MiB.*less than 1 together"):
        pool(Memory(others=0, others_later=50 * GIB, taken=20 * GIB))


def test_a_model_that_leaves_no_room_is_refused_with_the_figures() -> None:
    budget = device_budget(Memory(taken=70 * GIB), 0.9, 3 * GIB, 0)
    with pytest.raises(
        ConfigError,
        match=r"=0\.9 of 81920 MiB.*72080 MiB of weights.*3072 MiB of work.*memory_utilization higher",
    ):
        choose_num_blocks(EngineConfig(model_dir="m"), GIB, lambda: budget)


def test_a_cuda_device_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = {"now": 3 * GIB, "peak": 0, "reserved": GIB}
    for name in ("init", "empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: allocated["now"])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: allocated["reserved"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: allocated.update(peak=allocated["now"]))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: allocated["peak"])
    memory = CudaMemory()
    assert (memory.total, memory.free_at_start, memory.free()) == (80 * GIB, 70 * GIB, 70 * GIB)
    assert memory.peak_of(lambda: allocated.update(peak=5 * GIB)) == 2 * GIB
    allocated["reserved"] = 4 * GIB
    assert memory.taken() == 3 * GIB, "what lay there before the engine is not its own"


def test_a_device_that_refuses_its_first_call_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "init", fail)
    with pytest.raises(ConfigError, match=r"another process may hold all of its memory.*CUDA error: out of memory"):
        CudaMemory()
