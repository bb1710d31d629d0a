from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cpu import computes_here, keep_threads_apart, usable_cpus


@pytest.fixture
def _eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu.max": "nonsense"}, 8),
    ],
)
@pytest.mark.usefixtures("_eight_cpus")
def test_usable_cpus(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content + "\n")
    assert usable_cpus(tmp_path) == expected


@pytest.mark.parametrize(
    ("num_threads", "environ", "binds"),
    [
        (8, {}, True),
        (None, {}, True),
        (7, {}, False),
        (1, {}, False),
        (8, {"OMP_PROC_BIND": "false"}, False),
        (8, {"GOMP_CPU_AFFINITY": "0-3"}, False),
    ],
)
@pytest.mark.usefixtures("_eight_cpus")
def test_threads_are_kept_apart_only_where_they_have_every_cpu(
    num_threads: int | None, environ: dict[str, str], binds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("engine.cpu.usable_cpus", lambda: 8)
    before = dict(environ)
    assert keep_threads_apart(num_threads, environ) is binds
    assert environ == (before | {"OMP_PROC_BIND": "true"} if binds else before)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_openmp_heeds_it() -> None:
    """libgomp reads the variable when torch loads it, and then each thread has one CPU of its own."""
    program = """
import os
from pathlib import Path
from engine.cpu import keep_threads_apart
assert keep_threads_apart(None)
import torch
torch.rand(512, 512) @ torch.rand(512, 512)
masks = {t.name: os.sched_getaffinity(int(t.name)) for t in Path("/proc/self/task").iterdir()}
assert len(masks[str(os.getpid())]) == 1, masks
assert len(set().union(*(m for m in masks.values() if len(m) == 1))) >= 2, masks
"""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)


def test_a_model_computes_on_the_cpu_unless_a_gpu_is_asked_for_or_found(tmp_path: Path) -> None:
    driver = tmp_path / "nvidiactl"
    assert computes_here("cpu", driver)
    assert computes_here("auto", driver)
    assert not computes_here("cuda", driver)
    driver.touch()
    assert computes_here("cpu", driver)
    assert not computes_here("auto", driver)
