from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.runner.cpu import usable_cpus


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
