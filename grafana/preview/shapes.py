"""How each type of panel is drawn. Every function returns how many series, bars or rows it has drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from grafana.preview.source import Series
from grafana.preview.style import FAINT, GRID, NAMED, PALETTE, SCHEMES, TEXT, color_at, mapping_of, overrides_of
from grafana.preview.units import show

if TYPE_CHECKING:
    from grafana.preview.page import Page

Answers = Sequence[tuple[Mapping[str, Any], Sequence[Series]]]
Box = tuple[float, float, float, float]
Span = tuple[float, float]
Marks = Sequence[tuple[float, str]]
Shape = Callable[["Page", Mapping[str, Any], Answers, Box, Span, Marks], int]

TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 604_800, 1e9)
"""Seconds that may lie between two labels of the time axis."""
ROW = 17
"""Pixels of a line of a legend or table."""


def name_of(target: Mapping[str, Any], series: Series) -> str:
    """The series' name by the target's legend."""
    if legend := target.get("legendFormat"):
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: series.labels.get(match[1], ""), legend)
    return ", ".join(series.labels.values()) or str(target["refId"])


def named(answers: Answers) -> list[tuple[str, Series]]:
    return [(name_of(target, series), series) for target, found in answers for series in found if series.samples]


# --- types of panels -------------------------------------------------------------------------------------------------


def timeseries(page: Page, panel: Mapping[str, Any], answers: Answers, box: Box, span: Span, marks: Marks) -> int:
    series = named(answers)
    if not series:
        return 0
    defaults, unit = panel["fieldConfig"]["defaults"], panel["fieldConfig"]["defaults"]["unit"]
    decimals = defaults.get("decimals")
    x, y, w, h = box
    legend = min(ROW * (len(series) + 1), max(0.42 * h, 3 * ROW))
    axes = _time_axes(page, (x + 52, y, w - 58, h - legend - 22), span)
    stacked = defaults["custom"].get("stacking", {}).get("mode") == "normal"
    base: dict[float, float] = {}
    lines = []
    for index, (name, one) in enumerate(series):
        own = overrides_of(panel, name)
        color = NAMED[own["color"]["fixedColor"]] if "color" in own else PALETTE[index % len(PALETTE)]
        dashed = "custom.lineStyle" in own
        lines.append((name, one, color))
        times = np.array([t for t, _ in one.samples])
        values = np.array([v for _, v in one.samples])
        if stacked and not dashed:
            floor = np.array([base.get(t, 0.0) for t, _ in one.samples])
            values = floor + np.nan_to_num(values)
            base |= {t: v for (t, _), v in zip(one.samples, values, strict=True)}
            axes.fill_between(times, floor, values, color=color, alpha=0.3, lw=0)
        elif not dashed:
            axes.fill_between(times, 0, values, color=color, alpha=0.06, lw=0)
        axes.plot(times, values, color=color, lw=1.2, ls=(0, (6, 4)) if dashed else "-")
    _limit(axes, defaults, [v for _, one in series for _, v in one.samples] + list(base.values()))
    if defaults["custom"].get("thresholdsStyle", {}).get("mode", "off") != "off":
        for step in defaults["thresholds"]["steps"]:
            if step["value"] is not None:
                axes.axhline(step["value"], color=NAMED[step["color"]], lw=1, ls=(0, (4, 4)), alpha=0.8)
    for time, mark in marks:
        axes.axvline(time, color=NAMED[mark], lw=1, ls=(0, (2, 2)), alpha=0.7)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value, unit, decimals)))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=decimals == 0))
    if panel["options"]["legend"].get("sortBy") == "Max":
        lines.sort(key=lambda line: _most(line[1], -math.inf), reverse=panel["options"]["legend"]["sortDesc"])
    _legend(page, lines, unit, decimals, (x, y + h - legend, w, legend))
    return len(series)


def stat(page: Page, panel: Mapping[str, Any], answers: Answers, box: Box, span: Span, marks: Marks) -> int:
    series = named(answers)
    if not series:
        return 0
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    x, y, w, h = box
    width = w / len(series)
    for index, (name, one) in enumerate(series):
        left = x + index * width
        value = one.samples[-1][1] if options["reduceOptions"]["calcs"] == ["last"] else one.last
        text = show(value, defaults["unit"], defaults.get("decimals"))
        color = color_at(defaults["thresholds"]["steps"], value)
        if (mapped := mapping_of(defaults, value)) is not None:
            text, color = mapped
        filled = options["colorMode"] == "background"
        if filled:
            page.box(left, y, width - 4, h, color)
        values = np.array([v for _, v in one.samples])
        if options["graphMode"] == "area" and np.isfinite(values).sum() > 1:
            axes = page.axes(left, y + 0.55 * h, width - 4, 0.45 * h)
            axes.axis("off")
            axes.fill_between(range(len(values)), min(0.0, np.nanmin(values)), values, color=color, alpha=0.25, lw=0)
            axes.plot(values, color=color, lw=1)
        size = min(24.0, 1.15 * width / max(len(text), 3), 0.34 * h)
        middle = y + (0.42 if len(series) == 1 else 0.56) * h
        page.text(left + width / 2, middle, text, ha="center", fontsize=size, color="#111217" if filled else color)
        if len(series) > 1:
            page.text(left + width / 2, y + 0.14 * h, name, ha="center", color=FAINT, fontsize=8)
    return len(series)


def heatmap(page: Page, panel: Mapping[str, Any], answers: Answers, box: Box, span: Span, marks: Marks) -> int:
    _, found = answers[0]
    buckets = sorted(
        ((float(one.labels["le"].replace("+Inf", "inf")), one) for one in found if one.samples),
        key=lambda pair: pair[0],
    )
    if not buckets:
        return 0
    times = sorted({t for _, one in buckets for t, _ in one.samples})
    column = {t: index for index, t in enumerate(times)}
    counts = np.zeros((len(buckets), len(times)))
    for row, (_, one) in enumerate(buckets):
        for t, value in one.samples:
            counts[row, column[t]] = value
    counts = np.diff(counts, axis=0, prepend=0.0).clip(min=0)
    # NOTE: as Grafana does, only buckets between the first and the last with anything in them have a place.
    filled = np.flatnonzero(counts.max(axis=1) > 1e-9)
    if len(filled) == 0:
        return 0
    low, high = filled[0], filled[-1] + 1
    x, y, w, h = box
    axes = _time_axes(page, (x + 52, y, w - 58, h - 22), span)
    edges = [*times, times[-1] + (times[-1] - times[0]) / max(len(times) - 1, 1)]
    shown = np.ma.masked_less_equal(counts[low:high], 1e-9)
    scheme = mpl.colormaps[SCHEMES[panel["options"]["color"]["scheme"]]]
    axes.pcolormesh(edges, range(high - low + 1), shown**0.5, cmap=scheme, vmin=0)
    axes.grid(False)
    every = max(1, (high - low) // 7)
    ticks = list(range(1, high - low + 1, every))
    axes.set_yticks(ticks, [show(buckets[low + tick - 1][0], panel["options"]["yAxis"]["unit"]) for tick in ticks])
    for time, mark in marks:
        axes.axvline(time, color=NAMED[mark], lw=1, ls=(0, (2, 2)), alpha=0.7)
    return len(filled)


def bargauge(page: Page, panel: Mapping[str, Any], answers: Answers, box: Box, span: Span, marks: Marks) -> int:
    defaults = panel["fieldConfig"]["defaults"]
    bars = [(name, one.last) for name, one in named(answers)]
    if answers[0][0].get("format") == "heatmap":
        bars = _by_bucket(bars)
    bars = [bar for bar in bars if not math.isnan(bar[1])]
    if not bars:
        return 0
    most = defaults.get("max") or max(value for _, value in bars) or 1.0
    x, y, w, h = box
    height = min(h / len(bars), 34.0)
    for index, (name, value) in enumerate(bars):
        top = y + index * height
        color = color_at(defaults["thresholds"]["steps"], value)
        page.text(x + 44, top + height / 2, name, ha="right", fontsize=8)
        page.box(x + 50, top + 2, w - 120, height - 4, GRID)
        if value > 0:
            page.box(x + 50, top + 2, (w - 120) * min(value / most, 1), height - 4, color)
        text = show(value, defaults["unit"], defaults.get("decimals"))
        page.text(x + w - 4, top + height / 2, text, ha="right", color=color, fontsize=8)
    return len(bars)


def state_timeline(page: Page, panel: Mapping[str, Any], answers: Answers, box: Box, span: Span, marks: Marks) -> int:
    series = named(answers)
    if not series:
        return 0
    defaults = panel["fieldConfig"]["defaults"]
    x, y, w, h = box
    label = min(0.4 * w, 6.4 * max(len(name) for name, _ in series) + 8)
    axes = _time_axes(page, (x + label, y, w - label - 6, h - 2 * ROW - 10), span)
    axes.grid(False)
    for index, (_, one) in enumerate(series):
        step = one.samples[1][0] - one.samples[0][0] if len(one.samples) > 1 else 1.0
        for t, value in one.samples:
            _, color = mapping_of(defaults, value) or ("", TEXT)
            axes.fill_betweenx((index + 0.1, index + 0.9), t, t + step, color=color, lw=0)
    axes.set_ylim(len(series), 0)
    axes.set_yticks([index + 0.5 for index in range(len(series))], [name for name, _ in series])
    at = x
    for mapping in defaults["mappings"]:
        for option in mapping["options"].values():
            page.text(at, y + h - ROW / 2, "■", color=NAMED[option["color"]])
            page.text(at + 14, y + h - ROW / 2, option["text"], fontsize=8, color=FAINT)
            at += 7 * len(option["text"]) + 30
    return len(series)


def table(page: Page, panel: Mapping[str, Any], answers: Answers, box: Box, span: Span, marks: Marks) -> int:
    rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for target, found in answers:
        value_name = f"Value #{target['refId']}" if len(answers) > 1 else "Value"
        for one in found:
            key = tuple(sorted(one.labels.items()))
            rows.setdefault(key, dict(one.labels))[value_name] = one.last
    if not rows:
        return 0
    (organise,) = (one["options"] for one in panel["transformations"] if one["id"] == "organize")
    fields = sorted(organise["indexByName"], key=organise["indexByName"].get)
    heads = [organise["renameByName"][name] for name in fields]
    order = heads.index(panel["options"]["sortBy"][0]["displayName"])
    cells = [
        [_cell(panel, head, row.get(name)) for name, head in zip(fields, heads, strict=True)] for row in rows.values()
    ]
    cells.sort(key=lambda row: row[order][0])
    x, y, w, h = box
    given = [overrides_of(panel, head).get("custom.width") for head in heads]
    rest = (w - sum(width or 0 for width in given)) / max(1, sum(width is None for width in given))
    left = x
    for column, width in enumerate(width or rest for width in given):
        page.text(left, y + ROW / 2, heads[column], fontsize=8, color="#6e9fff", fontweight="bold")
        for index, row in enumerate(cells[: int(h / (ROW + 6)) - 1]):
            text, color = row[column]
            text = shortened(text, width)
            page.text(left, y + (index + 1) * (ROW + 6) + ROW / 2, text, fontsize=8.5, color=color)
        left += width
    return len(rows)


DRAW: dict[str, Shape] = {
    "timeseries": timeseries,
    "stat": stat,
    "heatmap": heatmap,
    "bargauge": bargauge,
    "state-timeline": state_timeline,
    "table": table,
}


# --- parts -----------------------------------------------------------------------------------------------------------


def _time_axes(page: Page, box: Box, span: Span) -> Any:
    axes = page.axes(*box)
    axes.set_xlim(*span)
    axes.tick_params(colors=FAINT, labelsize=7.5, length=0)
    axes.grid(True, color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    room = max(2, int(box[2] / 90))
    every = next(step for step in TICKS if (span[1] - span[0]) / step <= room)
    ticks = np.arange(math.ceil(span[0] / every) * every, span[1], every)
    clock = "%H:%M" if every >= 60 else "%H:%M:%S"
    axes.set_xticks(ticks, [datetime.fromtimestamp(at).strftime(clock) for at in ticks])
    return axes


def _limit(axes: Any, defaults: Mapping[str, Any], values: Sequence[float]) -> None:
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    most = max(most * 1.05, defaults["custom"].get("axisSoftMax") or 0.0) or 1.0
    axes.set_ylim(defaults.get("min", 0), defaults.get("max", most))


def _legend(page: Page, lines: Sequence[tuple[str, Series, str]], unit: str, decimals: int | None, box: Box) -> None:
    x, y, w, h = box
    last, most = x + w - 84, x + w - 6
    for at, head in ((last, "Last"), (most, "Max")):
        page.text(at, y + ROW / 2, head, ha="right", fontsize=7.5, color="#6e9fff")
    room = max(1, int(h / ROW) - 1)
    shown = lines if len(lines) <= room else lines[: max(1, room - 1)]
    if len(shown) < len(lines):
        page.text(x + 16, y + (len(shown) + 1.5) * ROW, f"+{len(lines) - len(shown)} more", fontsize=8, color=FAINT)
    for index, (name, series, color) in enumerate(shown):
        at = y + (index + 1.5) * ROW
        page.text(x, at, "▬", color=color, fontsize=8)
        page.text(x + 16, at, shortened(name, w - 178), fontsize=8, color=TEXT)
        for column, value in ((last, series.last), (most, _most(series))):
            page.text(column, at, show(value, unit, decimals), ha="right", fontsize=8, color=TEXT)


def _most(series: Series, default: float = math.nan) -> float:
    return max((value for _, value in series.samples if math.isfinite(value)), default=default)


def shortened(text: str, width: float) -> str:
    """What of a small text fits into so many pixels."""
    room = max(2, int(width / 6.6))
    return text if len(text) <= room else text[: room - 1] + "…"


def _by_bucket(bars: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Counts of each bucket from cumulative ones, without those empty at both ends."""
    bars = sorted(bars, key=lambda bar: float(bar[0].replace("+Inf", "inf")))
    counts = np.diff([value for _, value in bars], prepend=0.0)
    filled = np.flatnonzero(counts > 0.5)
    if len(filled) == 0:
        return []
    return [(bars[index][0], float(counts[index])) for index in range(filled[0], filled[-1] + 1)]


def _cell(panel: Mapping[str, Any], head: str, value: object) -> tuple[str, str]:
    own = overrides_of(panel, head)
    if not isinstance(value, float):
        return str(value or ""), "#6e9fff" if "links" in own else TEXT
    if (found := mapping_of(own, value)) is not None:
        return found
    steps = own.get("thresholds", {}).get("steps", [])
    return show(value, own["unit"], own.get("decimals")), color_at(steps, value) if steps else TEXT
