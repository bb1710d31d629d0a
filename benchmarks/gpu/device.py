"""The device under test: its clock, and the two rates that everything is held against."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import cached_property

import torch

FLUSH_BYTES = 256 << 20
"""Written between two timed calls; more than any GPU's L2 cache."""
COPY_BYTES = 2 << 30
MATMUL_SIZE = 8192


class Device:
    """A CUDA device, or for a smoke run the CPU, where kernels run in Triton's interpreter and times mean nothing."""

    def __init__(self, *, is_smoke: bool) -> None:
        self.is_smoke = is_smoke
        self.torch_device = torch.device("cpu" if is_smoke else "cuda")
        self.generator = torch.Generator(self.torch_device).manual_seed(0)

    @property
    def name(self) -> str:
        if self.is_smoke:
            return "CPU (Triton's interpreter)"
        properties = torch.cuda.get_device_properties(self.torch_device)
        return f"{properties.name}, {properties.multi_processor_count} SMs, {properties.total_memory >> 30} GiB"

    def release(self) -> None:
        """Gives memory that no tensor holds any more back to the device."""
        gc.collect()
        if not self.is_smoke:
            torch.cuda.empty_cache()

    def randn(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Never zeros: they hide unwritten outputs, and a GPU computes faster on them."""
        return torch.randn(shape, dtype=torch.float32, device=self.torch_device, generator=self.generator).to(dtype)

    def seconds(self, call: Callable[[], object], *, repeats: int = 30, in_graph: bool = False) -> float:
        """Median time of a call on the device, with a cold L2 cache.

        in_graph: the call is recorded and replayed, so that the time between the launches of its kernels is the
        device's, as in a decode step, not Python's.
        """
        if self.is_smoke:
            started = time.perf_counter()
            call()
            return time.perf_counter() - started
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        if in_graph:
            return self._seconds_in_graph(call, repeats)
        spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        for _ in range(repeats):
            # NOTE: while the device writes this, the host runs ahead, so that launches are not part of the time.
            self._flush_buffer.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            spans.append((start, end))
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in spans) / 1e3

    def _seconds_in_graph(self, call: Callable[[], object], repeats: int) -> float:
        # NOTE: "external" events are nodes of the graph, and take the time anew with each replay.
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        graph = torch.cuda.CUDAGraph()
        flushed = self._flush_buffer
        with torch.cuda.graph(graph):
            flushed.zero_()
            start.record()
            call()
            end.record()
        times = []
        for _ in range(repeats):
            graph.replay()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times) / 1e3

    @cached_property
    def _flush_buffer(self) -> torch.Tensor:
        return torch.empty(FLUSH_BYTES, dtype=torch.int8, device=self.torch_device)

    @cached_property
    def copy_rate(self) -> float:
        """Bytes a second that a large copy within the device's memory moves, read and written bytes counted."""
        size = (1 << 16) if self.is_smoke else COPY_BYTES
        source = torch.randint(-100, 100, (size,), dtype=torch.int8, device=self.torch_device)
        target = torch.empty_like(source)
        return 2 * size / self.seconds(lambda: target.copy_(source))

    @cached_property
    def matmul_rate(self) -> float:
        """Floating-point operations a second of a large bfloat16 matrix product of torch, on random data."""
        size = 64 if self.is_smoke else MATMUL_SIZE
        left, right = (self.randn(size, size, dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(left)
        return 2 * size**3 / self.seconds(lambda: torch.matmul(left, right, out=out))
