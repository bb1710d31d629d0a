"""`benchmarks.gpu.split_sweep` over a kernel whose time depends on the number of splits alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.gpu import split_sweep as module
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import PagedBatch, attend
from benchmarks.gpu.results import Reporter, Result, parse


def sweep(capsys: pytest.CaptureFixture[str], seconds: float) -> list[Result]:
    module.run(Device(is_smoke=True), Reporter("tiles", is_smoke=True), Budget(seconds))
    return [row for line in capsys.readouterr().out.splitlines() if (row := parse(line)) is not None]


def test_the_choice_is_held_against_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[int] = []

    def seconds(_: Device, call: Callable[[], object], **__: object) -> float:
        call()
        return 1e-6 * {1: 5.0, 2: 4.0}[asked[-1]]

    def fake(batch: PagedBatch, *, num_splits: int) -> None:
        assert batch.max_seq_len == 300
        asked.append(num_splits)

    monkeypatch.setattr(module, "attend", fake)
    monkeypatch.setattr(module, "choose_splits", lambda *_: 1)
    monkeypatch.setattr(Device, "copy_rate", 1e9)
    monkeypatch.setattr(Device, "seconds", seconds)
    (row,) = sweep(capsys, 1000.0)
    assert asked == [1, 2]
    assert row.case.endswith("1 splits as chosen, 2 are best")
    assert row.note == "µs by splits: 1: 5.0, 2: 4.0"
    assert row.value == pytest.approx(2 * 2 * (300 * 2 * 16 + 4 * 16) / 5e-6 / 1e9)


def test_the_real_kernel_in_the_interpreter(capsys: pytest.CaptureFixture[str]) -> None:
    assert module.attend is attend
    (row,) = sweep(capsys, 1000.0)
    assert row.value


def test_without_time_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = sweep(capsys, 0.0)
    assert row.note == "no time left"
