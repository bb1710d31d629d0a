"""The engine process's numbers against psutil's, and where there is no process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry

from engine import metrics_process
from engine.metrics_process import EngineProcessCollector


def values(pid: int | None) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(EngineProcessCollector("m", lambda: pid))
    found = {}
    for family in registry.collect():
        assert family.documentation
        for sample in family.samples:
            assert sample.labels == {"model_name": "m"}
            found[sample.name.removeprefix("pagedserve_engine_process_")] = sample.value
    return found


@pytest.fixture
def resting() -> Iterator[int]:
    """Process id of a Python that has stopped itself: its numbers do not change."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        yield child.pid
        child.kill()


def test_agrees_with_psutil(resting: int) -> None:
    process = psutil.Process(resting)
    found = values(resting)
    memory, cpu = process.memory_info(), process.cpu_times()
    assert found.keys() == {
        "cpu_seconds_total",
        "threads",
        "start_time_seconds",
        "virtual_memory_bytes",
        "resident_memory_bytes",
        "open_fds",
    }
    assert found["resident_memory_bytes"] == pytest.approx(memory.rss, rel=0.1)
    assert found["virtual_memory_bytes"] == memory.vms
    assert found["threads"] == process.num_threads()
    assert found["open_fds"] == process.num_fds()
    assert found["cpu_seconds_total"] == pytest.approx(cpu.user + cpu.system, abs=1)
    assert found["start_time_seconds"] == pytest.approx(process.create_time(), abs=1)


def test_no_process_has_no_series() -> None:
    assert values(None) == {}
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert values(child.pid) == {}


def test_a_process_that_ended_and_was_not_waited_for_has_no_series() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # its end closes the pipe
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert values(child.pid) == {}
    finally:
        child.wait()
        child.stdout.close()


def test_a_command_named_with_brackets_and_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    (folder / "fd" / "0").touch()
    rest = ["S", *map(str, range(4, 60))]  # field n of proc(5) holds n
    (folder / "stat").write_text(f"7 (a) b (c) {' '.join(rest)}")
    (tmp_path / "stat").write_text("cpu 1\nbtime 1000\n")
    monkeypatch.setattr(metrics_process, "_PROC", tmp_path)
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert values(7) == {
        "cpu_seconds_total": (14 + 15) / ticks,
        "threads": 20,
        "start_time_seconds": 1000 + 22 / ticks,
        "virtual_memory_bytes": 23,
        "resident_memory_bytes": 24 * page,
        "open_fds": 1,
    }
