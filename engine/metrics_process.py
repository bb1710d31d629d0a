"""What the operating system says of the engine process, for the front's metrics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "pagedserve_engine_process_"
_PROC = Path("/proc")
_ZOMBIE = "Z"


class EngineProcessCollector(Collector):
    """CPU seconds, memory, threads, open files and start time of the process `pid()`, read from /proc as of proc(5).

    Without that process (None, or one that has ended), or without a /proc, there are no series.
    """

    def __init__(self, model_name: str, pid: Callable[[], int | None]) -> None:
        self._labels = {"model_name": model_name}
        self._pid = pid
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page_size = os.sysconf("SC_PAGE_SIZE")
        self._boot_time = _boot_time()

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        if (pid := self._pid()) is None:
            return
        folder = _PROC / str(pid)
        try:
            # NOTE: the name of the command, in brackets, may itself hold blanks and brackets. What follows the last
            # one begins with field 3, the state.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            num_files = len(os.listdir(folder / "fd"))
        except OSError:
            return
        if fields[0] == _ZOMBIE:
            return
        cpu = CounterMetricFamily(PREFIX + "cpu_seconds", "User and system CPU time of the engine process")
        cpu.add_sample(PREFIX + "cpu_seconds_total", self._labels, (int(fields[11]) + int(fields[12])) / self._ticks)
        yield cpu
        yield self._gauge("threads", "Threads of the engine process", int(fields[17]))
        start = self._boot_time + int(fields[19]) / self._ticks
        yield self._gauge("start_time_seconds", "When the engine process started, in seconds since 1970", start)
        yield self._gauge("virtual_memory_bytes", "Address space of the engine process", int(fields[20]))
        resident = int(fields[21]) * self._page_size
        yield self._gauge("resident_memory_bytes", "Main memory held by the engine process", resident)
        yield self._gauge("open_fds", "Open file descriptors of the engine process", num_files)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        metric = GaugeMetricFamily(PREFIX + name, text)
        metric.add_sample(PREFIX + name, self._labels, value)
        return metric


def _boot_time() -> float:
    """Seconds since 1970 at which the machine started; 0 where there is no /proc."""
    try:
        lines = (_PROC / "stat").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
