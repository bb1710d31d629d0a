"""What of a GPU's memory is left for the KV pool."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Protocol

import torch

from engine.errors import ConfigError
from engine.runner.choice import unusable
from engine.runner.memory import Budget

logger = logging.getLogger(__name__)

FRAGMENTATION_SHARE = 20
"""One part in this many of the work space is kept free beside it, for what the allocator cannot join,"""
SPARE_BYTES = 64 << 20
"""and this much: attention that splits keys takes a little more work space for some chunks than for the largest."""
CONTEXT_BYTES = 512 << 20
"""What the CUDA context of a process takes, about and at most.

NOTE: nobody can ask for free memory before there is a context. So of what is held at the start, this much counts as
the context, and the rest as others'.
"""
DRIVER_BYTES = 1 << 30
"""The most that this process takes beside what torch allocates: kernels' code, libraries' handles, recorded graphs."""

MIN_PERCENT = 5
"""The least share, in percent, that is worth to be recommended."""


class DeviceMemory(Protocol):
    """The memory of one device, as seen since this object was made.

    total: bytes. free_at_start: bytes that nobody held then.
    """

    total: int
    free_at_start: int

    def free(self) -> int:
        """Bytes that nobody holds now."""
        ...

    def taken(self) -> int:
        """Bytes that torch's allocator has taken for this process."""
        ...

    def peak_of(self, run: Callable[[], None]) -> int:
        """Bytes that `run` allocates at its peak, beyond those allocated before."""
        ...


class CudaMemory:
    """The current CUDA device. Made before anything is loaded, but after the context."""

    def __init__(self) -> None:
        """Raises `ConfigError` for a device that cannot be used at all."""
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            # NOTE: what an earlier engine of this process has left behind (a notebook's) is to be had again.
            gc.collect()
            torch.cuda.empty_cache()
            self.free_at_start, self.total = torch.cuda.mem_get_info()
        except RuntimeError as error:
            raise unusable(error) from error
        self._reserved_at_start = torch.cuda.memory_reserved()

    def free(self) -> int:
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    def taken(self) -> int:
        return torch.cuda.memory_reserved() - self._reserved_at_start

    def peak_of(self, run: Callable[[], None]) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def check_share(memory: DeviceMemory, utilization: float) -> None:
    """Raises `ConfigError` where others hold so much that the share `utilization` of all memory is not to be had.

    NOTE: a smaller pool in its place would hide for good that the engine before this one had not quite ended.
    """
    context = _context(memory)
    if int(memory.total * utilization) - context <= memory.free_at_start:
        return
    percent = 100 * (memory.free_at_start + context) // memory.total
    advice = (
        f"to share the GPU with them, set memory_utilization to {percent / 100:g} or less"
        if percent >= MIN_PERCENT
        else "use another GPU"
    )
    raise ConfigError(
        f"memory_utilization={utilization:g} is {int(memory.total * utilization) >> 20} MiB of the GPU's"
        f" {memory.total >> 20}, and {memory.free_at_start >> 20} MiB are free: {_others(memory) >> 20} MiB are held by"
        " other processes (nvidia-smi lists them), or by something else in this one. Wait for their end, end them, or"
        f" {advice}"
    )


def device_budget(memory: DeviceMemory, utilization: float, work_space: int, provisional: int) -> Budget:
    """What the share `utilization` of all memory leaves beside all else that this process takes.

    work_space: bytes that a step takes at its peak, and that are free at the moment. provisional: bytes held now that
    are given back before the pool is allocated. What others hold does not count, but as far as it cannot be told apart.
    Raises `ConfigError` where others have taken, since the start, what the pool needs.
    """
    free, taken = memory.free(), memory.taken()
    # NOTE: the growth of everybody's memory is the only measure of what torch did not allocate. Another engine on this
    # GPU may load at the same time, or end.
    beside = memory.free_at_start - free - taken
    held = _context(memory) + taken + min(max(beside, 0), DRIVER_BYTES) - provisional
    step = work_space + work_space // FRAGMENTATION_SHARE + SPARE_BYTES
    num_bytes = int(memory.total * utilization) - held - step
    if beside > DRIVER_BYTES:
        logger.warning("other processes took about %d MiB of the GPU while this one loaded", beside >> 20)
    if num_bytes > (possible := free + provisional - step):
        raise ConfigError(
            f"the KV pool is to take {max(0, num_bytes) >> 20} MiB by memory_utilization={utilization:g}, but while"
            f" this engine loaded others have left {max(0, possible) >> 20} MiB of the GPU: the shares"
            " (memory_utilization) of the engines on one GPU must come to less than 1 together"
        )
    source = (
        f"memory_utilization={utilization:g} of {memory.total >> 20} MiB, with {held >> 20} MiB of weights, graphs and"
        f" CUDA's own and {work_space >> 20} MiB of work space,"
    )
    return Budget(num_bytes, source, "set memory_utilization higher, or lower max_num_batched_tokens or max_num_seqs")


def _context(memory: DeviceMemory) -> int:
    return min(memory.total - memory.free_at_start, CONTEXT_BYTES)


def _others(memory: DeviceMemory) -> int:
    return memory.total - memory.free_at_start - _context(memory)
