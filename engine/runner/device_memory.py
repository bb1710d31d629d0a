"""What of a GPU's memory is left for the KV pool."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

import torch

from engine.runner.memory import Budget

FRAGMENTATION_SHARE = 20
"""One part in this many of the work space is kept free beside it, for what the allocator cannot join."""


class DeviceMemory(Protocol):
    """The memory of one device, as seen since this object was made.

    total: bytes. free_at_start: bytes that nobody held then.
    """

    total: int
    free_at_start: int

    def free(self) -> int:
        """Bytes that nobody holds now."""
        ...

    def peak_of(self, run: Callable[[], None]) -> int:
        """Bytes that `run` allocates at its peak, beyond those allocated before."""
        ...


class CudaMemory:
    """The current CUDA device. Made before anything is loaded, but after the context, which is not counted."""

    def __init__(self) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        # NOTE: what an earlier engine of this process has left behind (a notebook's) is to be had again.
        gc.collect()
        torch.cuda.empty_cache()
        self.free_at_start, self.total = torch.cuda.mem_get_info()

    def free(self) -> int:
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    def peak_of(self, run: Callable[[], None]) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def device_budget(memory: DeviceMemory, utilization: float, work_space: int, provisional: int) -> Budget:
    """What `utilization` of the memory leaves after what is held now and the work space of the largest step.

    work_space: bytes that a step takes at its peak, and that are free at the moment. provisional: bytes held now that
    are given back before the pool is allocated. Where others hold so much that the share is not to be had, what is
    free counts instead.
    """
    share = min(int(memory.total * utilization), memory.free_at_start)
    held = memory.free_at_start - memory.free() - provisional
    num_bytes = share - held - work_space - work_space // FRAGMENTATION_SHARE
    source = (
        f"memory_utilization={utilization:g} of {memory.total >> 20} MiB, with {held >> 20} MiB of weights and graphs"
        f" and {work_space >> 20} MiB of work space,"
    )
    if share < int(memory.total * utilization):
        source = f"{source} of which others left {memory.free_at_start >> 20} MiB,"
    return Budget(num_bytes, source, "set memory_utilization higher, or lower max_num_batched_tokens or max_num_seqs")
