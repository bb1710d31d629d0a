"""`benchmarks.gpu.tile_sweep` over a kernel whose time depends on the tile alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.gpu import tile_sweep as module
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import PagedBatch
from benchmarks.gpu.results import Reporter, Result, parse
from benchmarks.gpu.tile_candidates import SMOKE_GROUPS, candidates
from benchmarks.gpu.tile_compiling import Job, Outcome
from kernels.tiles import Tile, attention_tile

DECODE = SMOKE_GROUPS[0]
NARROW, WIDE = candidates(DECODE, is_smoke=True)


class FakeKernel:
    """A call takes a second with the table's tile, `seconds` with another, and gives the mean value a head."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self._seconds = seconds
        self.last = 0.0
        self.broken: dict[int, Callable[[], torch.Tensor]] = {}

    def __call__(self, batch: PagedBatch, *, tile: Tile) -> torch.Tensor:
        self.last = self._seconds.get(tile.keys, 1.0)
        return self.broken.get(tile.keys, lambda: torch.ones(batch.q.shape))()

    def seconds(self, call: Callable[[], object], **_: object) -> float:
        call()
        return self.last


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[Result]]:
    def sweep(kernel: FakeKernel, seconds: float = 1000.0) -> list[Result]:
        monkeypatch.setattr(module, "attend", kernel)
        monkeypatch.setattr(module, "SMOKE_GROUPS", (DECODE,))
        device = Device(is_smoke=True)
        monkeypatch.setattr(Device, "copy_rate", 1e9)
        monkeypatch.setattr(Device, "seconds", lambda _, call, **options: kernel.seconds(call, **options))
        module.run(device, Reporter("tiles", is_smoke=True), Budget(seconds))
        return [row for line in capsys.readouterr().out.splitlines() if (row := parse(line)) is not None]

    return sweep


def test_the_fastest_tile_becomes_a_line_for_the_table(rows: Callable[..., list[Result]]) -> None:
    own, best, advice = rows(FakeKernel({NARROW.keys: 0.25, WIDE.keys: 0.5}))
    assert own.value is not None
    assert best.value == pytest.approx(4 * own.value)
    assert "(16, 16, 4, 2, 4)" in best.case
    assert best.note.endswith("the best of 2")
    assert advice.value == pytest.approx(4.0)
    assert "becomes Tile(rows=16, keys=16, num_warps=4, num_stages=2, programs_per_sm=4)" in advice.note


def test_a_tile_that_is_hardly_faster_leaves_the_table_as_it_is(
    rows: Callable[..., list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTH", 2.0)
    *_, advice = rows(FakeKernel({NARROW.keys: 0.6}))
    assert "stays; next is (16, 16, 4, 2, 4)" in advice.note


def test_tiles_that_fail_are_left_out(rows: Callable[..., list[Result]]) -> None:
    kernel = FakeKernel({NARROW.keys: 0.1})

    def fail() -> torch.Tensor:
        raise RuntimeError("out of resource: shared memory")

    kernel.broken[NARROW.keys] = fail
    left_out, _, best, _ = rows(kernel)
    assert left_out.note == "RuntimeError: out of resource: shared memory"
    assert left_out.passed is None
    assert "(16, 32, " in best.case


@pytest.mark.parametrize("value", [1.2, torch.nan])
def test_a_wrong_result_fails_the_run(rows: Callable[..., list[Result]], value: float) -> None:
    kernel = FakeKernel({NARROW.keys: 0.1})
    kernel.broken[NARROW.keys] = lambda: torch.full((2, 4, 16), value)
    wrong, *_, advice = rows(kernel)
    assert wrong.passed is False
    assert "differs from the table's by" in wrong.note
    assert "next is (16, 32, " in advice.note


def test_what_was_not_compiled_is_counted(rows: Callable[..., list[Result]], monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._Sweep.compile

    def compile_some(self: module._Sweep, groups: object) -> None:
        real(self, groups)

        def outcome(job: Job) -> Outcome:
            return Outcome(None, "OutOfResources") if job.tile == NARROW and job.is_split else Outcome(0)

        self._outcomes = {job: outcome(job) for job in self._outcomes}

    monkeypatch.setattr(module._Sweep, "compile", compile_some)
    own, best, left_out, _ = rows(FakeKernel({}))
    assert left_out.note == "1 OutOfResources"
    assert best.note.endswith("the best of 1")
    assert f"({attention_tile('interpreter', 16, 2, True).rows}, 64, " in own.case


def test_without_time_nothing_is_measured(rows: Callable[..., list[Result]]) -> None:
    (row,) = rows(FakeKernel({}), 0.0)
    assert row.note == "no time left"


@pytest.mark.parametrize("group", SMOKE_GROUPS, ids=lambda group: "decode" if group.decode else "prefill")
def test_the_real_kernel_in_the_interpreter(
    group: module.Group, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SMOKE_GROUPS", (group,))
    monkeypatch.setattr(module, "REPEATS_AT_LAST", 1)
    module.run(Device(is_smoke=True), Reporter("tiles", is_smoke=True), Budget(1000))
    found = [row for line in capsys.readouterr().out.splitlines() if (row := parse(line)) is not None]
    assert [row.passed for row in found] == [None] * 3
    assert all(row.value for row in found)
