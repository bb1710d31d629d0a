"""`benchmarks.gpu.__main__`: what a section that fails or hangs leaves behind."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.results import DEVICE_MARK, NO_DEVICE, Result


def test_a_section_that_runs_on_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "GRACE_SECONDS", 0)
    (result,) = command._run_group(["attention"], 0.05, True, set())
    assert result.passed is False
    assert result.note == "ended after 0 s"


@pytest.mark.parametrize(
    ("passed", "code"), [((True, None), 0), ((True, False), 1), ((), 0)], ids=["met", "missed", "no time"]
)
def test_the_exit_code_tells_of_missed_targets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], passed: tuple[bool | None, ...], code: int
) -> None:
    results = [Result("attention", "case", 1.0, "s", passed=one) for one in passed]
    monkeypatch.setattr(command, "_run_group", lambda *_: results)
    assert command.main(["--sections", "attention"]) == code
    assert capsys.readouterr().out.count("| attention | case | 1 s |") == len(passed)


def test_what_is_left_of_the_time_bounds_a_section(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[list[str], float]] = []

    def run(names: list[str], seconds: float, is_smoke: bool, devices: set[str]) -> list[Result]:
        devices.add("One GPU")
        asked.append((names, seconds))
        return []

    monkeypatch.setattr(command, "_run_group", run)
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    command.main(["--sections", "kernels,attention", "--seconds", "80"])
    assert capsys.readouterr().out.startswith("One GPU\n\n| section |")
    assert [names for names, _ in asked] == [["kernels"], ["attention"]]
    assert asked[0][1] == 80
    assert asked[1][1] == command.SECTIONS["attention"]


def test_a_device_that_is_lost_takes_no_rows_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second section finds no device any more: the command that starts it stands in for that here."""
    script = f"import sys; print('{DEVICE_MARK}One GPU'); sys.exit({NO_DEVICE} if 'layers' in sys.argv else 0)"
    monkeypatch.setattr(command, "SECTION", ("-c", script))
    assert command.main(["--sections", "attention,layers"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("One GPU\n\n| section |")
    assert f"failed with exit code {NO_DEVICE}" in out


def test_tiles_are_swept_only_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(command, "_run_group", lambda names, *_: asked.extend(names) or [])
    command.main([])
    assert asked == [name for name in command.SECTIONS if name != "tiles"]
    command.main(["--sections", "tiles"])
    assert asked[-1] == "tiles"
