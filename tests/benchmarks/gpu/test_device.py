"""`benchmarks.gpu.device` over a fake of torch's CUDA interface whose clock is a counter of calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from benchmarks.gpu import device as module
from benchmarks.gpu.device import Device
from benchmarks.gpu.timed_runner import cuda_clock


class FakeCuda:
    """Each call of `work` takes a second on the device's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.num_calls = 0
        self.recorded: list[object] = []
        """What is being captured, or was last."""
        self.is_capturing = False
        fake = self

        class Event:
            def __init__(self, enable_timing: bool = False, external: bool = False) -> None:
                self.is_external = external
                self.time = float("nan")

            def record(self) -> None:
                if fake.is_capturing:
                    assert self.is_external, "an event in a graph that takes no time"
                    fake.recorded.append(self)
                else:
                    self.time = fake.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Event) -> float:
                return (end.time - self.time) * 1e3

        class Graph:
            def replay(self) -> None:
                for item in fake.recorded:
                    if isinstance(item, Event):
                        item.time = fake.now
                    else:
                        fake.now += 1.0

        @contextmanager
        def graph(_: Graph) -> Iterator[None]:
            fake.is_capturing = True
            yield
            fake.is_capturing = False

        for name, value in (("Event", Event), ("CUDAGraph", Graph), ("graph", graph), ("synchronize", lambda: None)):
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(module, "FLUSH_BYTES", 64)

    def work(self) -> None:
        self.num_calls += 1
        if self.is_capturing:
            self.recorded.append("work")
        else:
            self.now += 1.0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.fixture
def device() -> Device:
    device = Device(is_smoke=True)
    device.is_smoke = False  # what it allocates stays on the CPU
    return device


def test_a_call_is_timed_after_a_warm_up(device: Device, cuda: FakeCuda) -> None:
    assert device.seconds(cuda.work, repeats=5) == 1.0
    assert cuda.num_calls == 3 + 5


def test_a_recorded_call_is_timed_by_events_of_the_graph(device: Device, cuda: FakeCuda) -> None:
    def twice() -> None:
        cuda.work()
        cuda.work()

    assert device.seconds(twice, repeats=5, in_graph=True) == 2.0
    assert cuda.num_calls == 2 * (3 + 1)  # then replayed


def test_rates_count_bytes_both_ways_and_two_operations_a_product(
    device: Device, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COPY_BYTES", 1000)
    monkeypatch.setattr(module, "MATMUL_SIZE", 16)
    monkeypatch.setattr(Device, "seconds", lambda self, call, **_: 0.5)
    assert device.copy_rate == 2 * 1000 / 0.5
    assert device.matmul_rate == 2 * 16**3 / 0.5


def test_marks_are_on_the_clock_of_the_host(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 50.0)
    mark = cuda_clock()
    cuda.work()
    cuda.work()
    passed = mark()
    cuda.work()
    assert passed() == 52.0
