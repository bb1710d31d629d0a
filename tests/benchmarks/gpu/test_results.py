"""`benchmarks.gpu.results`: rows from a section to the table."""

from __future__ import annotations

import pytest

from benchmarks.gpu.results import Reporter, Result, Target, condensed, parse, table


def rows(capsys: pytest.CaptureFixture[str]) -> list[Result]:
    return [result for line in capsys.readouterr().out.splitlines() if (result := parse(line)) is not None]


def test_a_check_is_judged_on_every_device_and_nan_never_passes(capsys: pytest.CaptureFixture[str]) -> None:
    report = Reporter("kernels", is_smoke=True)
    report.check("good", 0.5, 1.0)
    report.check("bad", 1.5, 1.0)
    report.check("nan", float("nan"), 1.0)
    report.check("exact", 0, 0)
    report.check("not exact", 1, 0)
    assert [row.passed for row in rows(capsys)] == [True, False, False, True, False]


@pytest.mark.parametrize(
    ("target", "value", "passed"),
    [
        (Target(at_least=0.8), 8.0, True),
        (Target(at_least=0.8), 7.9, False),
        (Target(at_most=0.8), 8.0, True),
        (Target(at_most=0.8), 8.1, False),
        (Target(at_most=0.8), float("nan"), False),
        (None, 8.0, None),
    ],
)
def test_a_speed_is_held_to_its_target(
    capsys: pytest.CaptureFixture[str], target: Target | None, value: float, passed: bool | None
) -> None:
    Reporter("attention", is_smoke=False).speed("case", value, "GB/s", against=10.0, target=target)
    assert [row.passed for row in rows(capsys)] == [passed]


def test_a_smoke_run_judges_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter("attention", is_smoke=True).speed("case", 1.0, "GB/s", against=10.0, target=Target(at_least=0.8))
    (row,) = rows(capsys)
    assert row.passed is None
    assert row.target == "≥ 0.8"


def test_other_lines_of_a_section_are_no_rows() -> None:
    assert parse("a warning\n") is None


def test_table() -> None:
    text = table(
        [
            Result("attention", "decode", 3500.0, "GB/s", 4300.0, "≥ 0.8", True, "62 µs"),
            Result("llama", "batch 256", note="no time left"),
            Result("kernels", "a|b", 0.5, "of tokens differ", 0.03, "≤ 1", False),
        ]
    )
    assert text.splitlines()[2:] == [
        "| attention | decode (62 µs) | 3500 GB/s | 4300 GB/s | 0.814 | ≥ 0.8 | yes |",
        "| llama | batch 256 (no time left) | — |  |  |  |  |",
        "| kernels | a\\|b | 0.5 of tokens differ | 0.03 of tokens differ | 16.7 | ≤ 1 | **NO** |",
    ]


def test_passed_checks_of_a_kernel_become_one_row() -> None:
    def check(case: str, error: float, unit: str = "rel. error") -> Result:
        return Result("kernels", case, error, unit, 1.0, "≤ 1", error <= 1.0, "note")

    results = [
        Result("kernels", "copy", 4300.0, "GB/s"),
        check("rms_norm 64", 0.1),
        check("rms_norm 896", 0.7),
        check("rms_norm 4096", 1.7),
        check("silu_mul 64", 0.2),
        check("rms_norm 128", 0.3),
        Result("layers", "rms_norm 4096, 32 tokens", 3.0, "µs", 2.0),
        Result("layers", "rms_norm 4096, 8192 tokens", 30.0, "µs", 20.0),
    ]
    rows = condensed(results)
    assert [(row.case, row.value) for row in rows] == [
        ("copy", 4300.0),
        ("rms_norm 896", 0.7),
        ("rms_norm 4096", 1.7),
        ("silu_mul 64", 0.2),
        ("rms_norm 4096, 32 tokens", 3.0),
        ("rms_norm 4096, 8192 tokens", 30.0),
    ]
    assert rows[1].note == "worst of 3 checks; note"
