"""Every type of panel drawn from made-up answers: with data, without, and where the grid says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from grafana.catalogue import FOLDER
from grafana.preview.page import UNIT, WIDTH, Page, draw
from grafana.preview.source import Series, Source

DASHBOARDS = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}
LABELS = {"namespace": "default", "inferenceservice": "llm", "pod": "llm-predictor-7d9c5b8f6d-2xk4q", "version": "1"}


class MadeUp(Source):
    """Answers every query with two series: buckets that fill where there is `le`, and a value that a mapping knows."""

    def __init__(self, *, silent: bool = False) -> None:
        super().__init__("http://127.0.0.1:1", 1_000_000.0, 1_000_600.0, 15.0)
        self._silent = silent

    def range(self, expression: str) -> list[Series]:
        times = [1_000_000.0 + 15 * step for step in range(41)]
        return [Series(labels, [(t, value) for t in times]) for labels, value in self._series(expression)]

    def instant(self, expression: str) -> list[Series]:
        return [Series(labels, [(1_000_600.0, value)]) for labels, value in self._series(expression)]

    def label_sets(self, selector: str) -> list[dict[str, str]]:
        return [] if self._silent else [LABELS]

    def _series(self, expression: str) -> list[tuple[dict[str, str], float]]:
        if self._silent:
            return []
        if expression.startswith("sum by (le)"):
            return [({"le": "0.5"}, 1.0), ({"le": "1.0"}, 5.0), ({"le": "+Inf"}, 5.0)]
        return [(LABELS, 1.0)]


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_panel_is_drawn(uid: str, tmp_path: Path) -> None:
    drawn = draw(DASHBOARDS[uid], MadeUp(), tmp_path / "a.png")
    assert [one.title for one in drawn if one.kind != "row" and one.series == 0] == []
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == WIDTH


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_without_data_panels_say_so(uid: str, tmp_path: Path) -> None:
    drawn = draw(DASHBOARDS[uid], MadeUp(silent=True), tmp_path / "a.png")
    assert all(one.series == 0 for one in drawn)


@pytest.mark.parametrize("uid", ["pagedserve-service", "pagedserve-engine"])
def test_what_is_not_a_number_is_drawn_as_nothing(uid: str, tmp_path: Path) -> None:
    class Idle(MadeUp):
        def _series(self, expression: str) -> list[tuple[dict[str, str], float]]:
            return [(labels, math.nan) for labels, _ in super()._series(expression)]

    drawn = draw(DASHBOARDS[uid], Idle(), tmp_path / "a.png")
    assert {one.series for one in drawn if one.kind in {"heatmap", "bargauge"}} <= {0}


def test_a_collapsed_row_opens_and_moves_what_is_below(tmp_path: Path) -> None:
    engine = DASHBOARDS["pagedserve-engine"]
    rows = [panel for panel in engine["panels"] if panel.get("collapsed")]
    heights = []
    for expand in (False, True):
        drawn = draw({**engine, "panels": rows}, MadeUp(), tmp_path / "a.png", expand=expand)
        with Image.open(tmp_path / "a.png") as picture:
            heights.append(picture.height)
        assert (90 in {one.panel_id for one in drawn}) == expand
    assert heights[1] == heights[0] + 3 * 8 * UNIT


@pytest.mark.parametrize("num_series", [3, 40])
def test_a_legend_that_is_cut_says_how_many_more_there_are(
    num_series: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Many(MadeUp):
        def _series(self, expression: str) -> list[tuple[dict[str, str], float]]:
            return [(LABELS | {"pod": f"pod-{number}"}, 1.0) for number in range(num_series)]

    texts: list[str] = []
    monkeypatch.setattr(Page, "text", lambda self, x, y, text, **style: texts.append(text))
    service = DASHBOARDS["pagedserve-service"]
    panel = next(one for one in service["panels"] if one["type"] == "timeseries" and len(one["targets"]) == 1)
    panel = {**panel, "targets": [{**panel["targets"][0], "legendFormat": "{{pod}}"}]}
    draw({**service, "panels": [panel]}, Many(), tmp_path / "a.png")
    shown = [text for text in texts if text.startswith("pod-")]
    assert shown == [f"pod-{number}" for number in range(len(shown))]
    assert [text for text in texts if text.endswith(" more")] == (
        [f"+{num_series - len(shown)} more"] if num_series == 40 else []
    )
    assert (len(shown) < num_series) == (num_series == 40)


def test_a_broken_answer_is_not_drawn_over(tmp_path: Path) -> None:
    class Broken(MadeUp):
        def range(self, expression: str) -> Any:
            raise RuntimeError("many-to-many matching not allowed")

    with pytest.raises(RuntimeError, match="many-to-many"):
        draw(DASHBOARDS["pagedserve-engine"], Broken(), tmp_path / "a.png")
