"""What the device runner needs of the device: page-locked memory, events, recorded graphs. Two kinds of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

Compute = Callable[[], None]
"""Work on memory that stays where it is: called again, it reads and writes the same tensors."""


class Event(Protocol):
    """A point in the order of the device's work."""

    def record(self) -> None:
        """Places it behind everything launched so far."""
        ...

    def synchronize(self) -> None:
        """Waits until the device has come there; returns at once where it was never placed."""
        ...


class GraphRecorder(Protocol):
    """Records work to be replayed with one launch. The graphs of one recorder share their memory."""

    def record(self, compute: Compute) -> Compute:
        """Runs `compute`, records it, and returns what replays it. The largest work comes first.

        NOTE: what one graph leaves in memory that it allocated is gone when another one runs: results go to memory
        that was there before.
        """
        ...


class Accelerator(Protocol):
    """The device of a `DeviceRunner`. All of its work is launched in one order, by one thread at a time.

    compiles: whether a kernel's first launch compiles it.
    """

    device: torch.device
    compiles: bool

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """uint8 (num_bytes) in host memory from which the device copies while the host goes on."""
        ...

    def event(self) -> Event: ...

    def recorder(self) -> GraphRecorder: ...

    def release_memory(self) -> None:
        """Gives memory that nothing uses back to the device."""
        ...


class CudaAccelerator:
    """A CUDA device: everything runs on its current stream."""

    compiles = True

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        # NOTE: one for all recorders, since the libraries keep a workspace for each stream that they have met. torch
        # 2.13 drops it with any graph of that stream: one recorder's graphs are to be gone before another's are made.
        self._side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def event(self) -> Event:
        return _CudaEvent()

    def recorder(self) -> GraphRecorder:
        return _CudaGraphRecorder(self._side_stream)

    def release_memory(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class _CudaEvent:
    def __init__(self) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record()

    def synchronize(self) -> None:
        self._event.synchronize()


class _CudaGraphRecorder:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = stream

    def record(self, compute: Compute) -> Compute:
        stream, current = self._stream, torch.cuda.current_stream()
        # NOTE: once as it is, on the stream of the capture: what is compiled, loaded or set up at a first call
        # (kernels, workspaces of the libraries) may not be inside of it.
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            compute()
        graph = torch.cuda.CUDAGraph()
        # NOTE: thread_local, since other threads of a notebook may use the device meanwhile.
        with (
            _no_garbage_collection(),
            torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"),
        ):
            compute()
        current.wait_stream(stream)
        return graph.replay


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """NOTE: a collection may find somebody's graph or kernel, and to destroy one is not permitted during a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class HostAccelerator:
    """The CPU in the place of a device, for kernels under Triton's interpreter: all work is done when its call returns.

    Its graphs run the recorded work again, over the same memory.
    """

    compiles = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def event(self) -> Event:
        return _HostEvent()

    def recorder(self) -> GraphRecorder:
        return _HostRecorder()

    def release_memory(self) -> None:
        """Nothing is held back."""


class _HostEvent:
    def record(self) -> None:
        """All work so far is done."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class _HostRecorder:
    def record(self, compute: Compute) -> Compute:
        compute()
        return compute
