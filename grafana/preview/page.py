"""One picture of a dashboard: its head, and its panels where the grid puts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from grafana.preview import shapes
from grafana.preview.source import Source
from grafana.preview.style import BACKGROUND, BORDER, FAINT, PANEL, TEXT
from grafana.preview.template import Template, resolve, values_of

WIDTH, UNIT, GAP, HEAD, DPI = 1600, 36, 8, 86, 100
"""Pixels: of the page, of a grid row with its gap, between panels, of the head; and the resolution they are at."""
COLUMNS = 24


@dataclass(frozen=True)
class Drawn:
    """A panel of the picture. series: how many were drawn, bars or rows likewise; 0 is a panel without data."""

    panel_id: int
    title: str
    kind: str
    series: int


@dataclass(frozen=True)
class _Placed:
    panel: Mapping[str, Any]
    template: Template
    x: int
    y: int
    w: int
    h: int


def draw(
    dashboard: Mapping[str, Any],
    source: Source,
    file: Path,
    *,
    given: Mapping[str, Sequence[str]] | None = None,
    expand: bool = False,
) -> list[Drawn]:
    """Writes the picture as PNG and tells what is in it. given: values of variables. expand: opens collapsed rows."""
    template = resolve(dashboard, source, given)
    placed, rows = _layout(dashboard, source, template, expand)
    height = HEAD + UNIT * rows + GAP
    with mpl.rc_context({"font.family": "DejaVu Sans", "text.color": TEXT, "axes.edgecolor": BORDER}):
        figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor=BACKGROUND)
        canvas = FigureCanvasAgg(figure)
        page = Page(figure, WIDTH, height)
        _head(page, dashboard, template, source)
        marks = [mark for event in dashboard["annotations"]["list"] for mark in _marks(event, source, template)]
        drawn = [_panel(page, one, source, marks) for one in placed]
        canvas.draw()
    # NOTE: 256 colours are enough for lines on dark ground, and make the file a third as large.
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    return drawn


@dataclass(frozen=True)
class Page:
    """The figure, addressed in pixels from its upper left corner."""

    figure: Figure
    width: int
    height: int

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """Writes it, its middle at this height."""
        self.figure.text(x / self.width, 1 - y / self.height, text, **{"va": "center", "fontsize": 9, **style})

    def measured(self, x: float, y: float, text: str, **style: Any) -> float:
        """Writes it and returns its width."""
        made = self.figure.text(x / self.width, 1 - y / self.height, text, **{"va": "center", "fontsize": 9, **style})
        return float(made.get_window_extent().width)

    def axes(self, x: float, y: float, w: float, h: float) -> Any:
        made = self.figure.add_axes((x / self.width, 1 - (y + h) / self.height, w / self.width, h / self.height))
        made.set_facecolor("none")
        return made

    def box(self, x: float, y: float, w: float, h: float, face: str = PANEL) -> None:
        corner = (x / self.width, 1 - (y + h) / self.height)
        self.figure.add_artist(
            FancyBboxPatch(
                corner, w / self.width, h / self.height, boxstyle="square,pad=0", fc=face, ec=BORDER, lw=0.8, zorder=-1
            )
        )


def _layout(
    dashboard: Mapping[str, Any], source: Source, template: Template, expand: bool
) -> tuple[list[_Placed], int]:
    """Panels in place. Rows that are opened or repeated push down what is below them, as in Grafana."""
    placed: list[_Placed] = []
    shift, bottom = 0, 0

    def put(panel: Mapping[str, Any], values: Template, down: int) -> None:
        nonlocal bottom
        at = panel["gridPos"]
        placed.append(_Placed(panel, values, at["x"], at["y"] + down, at["w"], at["h"]))
        bottom = max(bottom, at["y"] + down + at["h"])

    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            put(panel, template, shift)
            continue
        repeats = [template]
        if name := panel.get("repeat"):
            found = values_of(variables[name], source, template)
            repeats = [template.with_value(name, value) for value in found] or repeats
        for index, values in enumerate(repeats):
            put(panel, values, shift + index)
            if expand and panel["panels"]:
                for inner in panel["panels"]:
                    put(inner, values, shift + index)
                shift += (
                    max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in panel["panels"])
                    - panel["gridPos"]["y"]
                    - 1
                )
        shift += len(repeats) - 1
    return placed, bottom


def _head(page: Page, dashboard: Mapping[str, Any], template: Template, source: Source) -> None:
    page.text(16, 24, dashboard["title"], fontsize=14, fontweight="bold")
    start, end = (datetime.fromtimestamp(at).strftime("%H:%M:%S") for at in (source.start, source.end))
    links = "   ".join(f"↗ {link['title']}" for link in dashboard["links"])
    right = page.width - 16 - page.measured(page.width - 16, 24, f"{start} to {end}", ha="right", color=FAINT)
    page.text(right - 30, 24, links, ha="right", color="#6e9fff")
    x = 16.0
    for variable in dashboard["templating"]["list"]:
        if variable.get("hide"):
            continue
        value = " + ".join(template.values[variable["name"]].texts) or "None"
        x += page.measured(x, 60, variable.get("label", variable["name"]), color=FAINT) + 14
        x += page.measured(x, 60, value, bbox={"fc": PANEL, "ec": BORDER, "pad": 4}) + 26


def _panel(page: Page, one: _Placed, source: Source, marks: list[tuple[float, str]]) -> Drawn:
    panel, column = one.panel, (page.width - GAP) / COLUMNS
    x, y = GAP + one.x * column, HEAD + one.y * UNIT
    w, h = one.w * column - GAP, one.h * UNIT - GAP
    title = one.template.title(panel["title"])
    if panel["type"] == "row":
        page.text(x + 6, y + h / 2, ("▸  " if panel["collapsed"] else "▾  ") + title, fontsize=11, fontweight="bold")
        return Drawn(panel["id"], title, "row", 0)
    page.box(x, y, w, h)
    page.text(x + 10, y + 16, _short(title, w), fontweight="bold")
    answers = []
    for target in panel["targets"]:
        expression = one.template.expression(target["expr"])
        found = source.instant(expression) if target.get("instant") else source.range(expression)
        answers.append((target, found))
    inside = (x + 10, y + 30, w - 20, h - 38)
    count = shapes.DRAW[panel["type"]](page, panel, answers, inside, (source.start, source.end), marks)
    if count == 0:
        text = panel["fieldConfig"]["defaults"].get("noValue", "No data")
        page.text(x + w / 2, y + h / 2 + 8, text, ha="center", color=FAINT, fontsize=11)
    return Drawn(panel["id"], title, panel["type"], count)


def _marks(event: Mapping[str, Any], source: Source, template: Template) -> list[tuple[float, str]]:
    """(Unix seconds, colour) of the beginnings of what an annotation finds."""
    made = []
    for series in source.range(template.expression(event["target"]["expr"])):
        times = [time for time, value in series.samples if value]
        made += [
            (time, event["iconColor"])
            for index, time in enumerate(times)
            if index == 0 or time - times[index - 1] > 1.5 * source.step
        ]
    return made


def _short(text: str, width: float) -> str:
    room = int(width / 7.4)
    return text if len(text) <= room else text[: room - 1] + "…"
