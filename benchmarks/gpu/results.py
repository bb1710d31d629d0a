"""What a section finds, on its way from the section's process to the table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

MARK = "RESULT "
DEVICE_MARK = "DEVICE "
"""Begins the line in which a section names its device."""
NO_DEVICE = 3
"""Exit code of a section that finds no device."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on value / against."""

    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, ratio: float) -> bool:
        """A NaN meets nothing."""
        low = True if self.at_least is None else ratio >= self.at_least
        high = True if self.at_most is None else ratio <= self.at_most
        return low and high

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


CHECK_TARGET = str(Target(at_most=1))


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table.

    value: what was found, in `unit`; None where nothing could be, and `note` says why. against: what it is held
    against, in the same unit. target: as text, on value / against. passed: None where nothing was asked for.
    """

    section: str
    case: str
    value: float | None = None
    unit: str = ""
    against: float | None = None
    target: str = ""
    passed: bool | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        if self.value is None or not self.against:
            return None
        return self.value / self.against


class Reporter:
    """Writes the rows of one section, each at once, so that what was found outlives a crash.

    is_smoke: speeds are of the interpreter and mean nothing: only checks of values are judged.
    """

    def __init__(self, section: str, *, is_smoke: bool) -> None:
        self._section = section
        self._is_smoke = is_smoke

    def check(self, case: str, error: float, bound: float, unit: str = "rel. error", note: str = "") -> None:
        """A value that must be at most `bound`, on every device."""
        target = CHECK_TARGET if bound else "0"
        self._write(Result(self._section, case, error, unit, bound, target, error <= bound, note))

    def speed(
        self,
        case: str,
        value: float,
        unit: str,
        *,
        against: float | None = None,
        target: Target | None = None,
        note: str = "",
    ) -> None:
        passed = None
        if target is not None and not self._is_smoke:
            passed = against is not None and target.is_met(value / against)
        self._write(Result(self._section, case, value, unit, against, str(target or ""), passed, note))

    def missing(self, case: str, note: str) -> None:
        """Something that could not be measured here, which is not a failure."""
        self._write(Result(self._section, case, note=note))

    def failed(self, case: str, note: str) -> None:
        self._write(Result(self._section, case, passed=False, note=note))

    def _write(self, result: Result) -> None:
        print(MARK + json.dumps(asdict(result)), flush=True)


def parse(line: str) -> Result | None:
    """The result in a line of a section's output, or None."""
    if not line.startswith(MARK):
        return None
    return Result(**json.loads(line[len(MARK) :]))


def condensed(results: Iterable[Result]) -> list[Result]:
    """Of the passed checks of a kernel only the worst, where there are several; every other row as it is.

    A check's case begins with the kernel's name.
    """
    rows: dict[tuple[str, ...], list[Result]] = {}
    for i, result in enumerate(results):
        is_passed_check = result.passed is True and result.target == CHECK_TARGET
        key = (result.section, result.unit, result.case.split()[0]) if is_passed_check else (str(i),)
        rows.setdefault(key, []).append(result)
    return [_worst(group) for group in rows.values()]


def _worst(results: list[Result]) -> Result:
    worst = max(results, key=lambda result: result.ratio or 0.0)
    if len(results) == 1:
        return worst
    return replace(worst, note="; ".join(filter(None, (f"worst of {len(results)} checks", worst.note))))


def table(results: Iterable[Result]) -> str:
    """The rows as a Markdown table, section by section."""
    lines = ["| section | case | measured | against | ratio | target | met |", "|---|---|---|---|---|---|---|"]
    for r in results:
        against = "" if r.against is None else f"{_number(r.against)} {r.unit}"
        measured = "—" if r.value is None else f"{_number(r.value)} {r.unit}"
        ratio = "" if r.ratio is None else f"{r.ratio:.3g}"
        met = {None: "", True: "yes", False: "**NO**"}[r.passed]
        case = f"{r.case} ({r.note})" if r.note else r.case
        cells = (r.section, case, measured, against, ratio, r.target, met)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def _number(value: float) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
