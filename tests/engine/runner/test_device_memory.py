from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner.device_memory import device_budget
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
        ConfigError, match=r"memory_utilization=0\.9 of 16384 MiB.*14336 MiB of weights.*2048 MiB of work"
    ):
        choose_num_blocks(EngineConfig(model_dir="m"), GIB, lambda: budget)
