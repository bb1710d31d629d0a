"""Recording a graph, as far as it can be told without a GPU: the calls to torch, in order."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.runner.accelerator import CudaAccelerator, HostAccelerator


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class FakeGraph:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def replay(self) -> None:
        self.log.append("replay")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls to torch.cuda, on a machine with one device."""
    log: list[str] = []
    main = FakeStream(log, "main")

    @contextmanager
    def stream(entered: FakeStream) -> Iterator[None]:
        log.append(f"on {entered.name}")
        yield
        log.append(f"off {entered.name}")

    @contextmanager
    def graph(graph: FakeGraph, *, pool: Any, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        log.append(f"capture in {pool} on {stream.name} ({capture_error_mode})")
        yield
        log.append("captured")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    pools = iter(["pool 1", "pool 2"])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    sides = iter(["side", "another side"])
    monkeypatch.setattr(torch.cuda, "Stream", lambda: FakeStream(log, next(sides)))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(log))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return log


def test_work_runs_once_on_the_side_before_it_is_captured_there(log: list[str]) -> None:
    accelerator = CudaAccelerator()
    assert accelerator.device == torch.device("cuda", 0)
    replay = accelerator.recorder().record(lambda: log.append("work"))
    capture = ["capture in pool 1 on side (thread_local)", "work", "captured"]
    assert log == ["side waits for main", "on side", "work", "off side", *capture, "main waits for side"]
    log.clear()
    replay()
    assert log == ["replay"]


def test_nothing_is_collected_during_a_capture(log: list[str]) -> None:
    """A graph or a kernel that is garbage must not be destroyed then: CUDA forbids it."""
    enabled: list[bool] = []

    def work() -> None:
        enabled.append(gc.isenabled())

    recorder = CudaAccelerator().recorder()
    recorder.record(work)
    assert enabled == [True, False]
    assert gc.isenabled()

    def fail() -> None:
        work()
        if not gc.isenabled():
            raise RuntimeError("CUDA error")

    with pytest.raises(RuntimeError, match="CUDA error"):
        recorder.record(fail)
    assert gc.isenabled()
    gc.disable()
    try:
        recorder.record(work)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_graphs_of_a_recorder_share_their_memory_and_all_recorders_a_stream(log: list[str]) -> None:
    accelerator = CudaAccelerator()
    for recorder in (accelerator.recorder(), accelerator.recorder()):
        for _ in range(2):
            recorder.record(lambda: None)
    captures = [line for line in log if line.startswith("capture in")]
    assert captures == [
        f"capture in {pool} on side (thread_local)" for pool in ("pool 1", "pool 1", "pool 2", "pool 2")
    ]


def test_the_hosts_graph_runs_the_work_again() -> None:
    calls: list[int] = []
    replay = HostAccelerator().recorder().record(lambda: calls.append(1))
    replay()
    assert len(calls) == 2


def test_the_hosts_events_never_wait() -> None:
    event = HostAccelerator().event()
    event.synchronize()
    event.record()
    event.synchronize()
