"""A dashboard put together: rows of panels on Grafana's grid of 24 columns, variables, annotations and links."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders.dashboard import AnnotationQuery, Dashboard, Row, TimePicker
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, GridPos

from grafana.links import UIDS, dashboard, doc
from grafana.panels import Builder
from grafana.variables import SOURCE, cluster, datasource, inferenceservice, namespace, one_inferenceservice, pod

COLUMNS = 24
_OF_INTERVALS = ("auto", "auto_count", "auto_min")
"""What the SDK gives variables of every kind, and Grafana's schema knows of intervals only."""


@dataclass(frozen=True)
class Line:
    """Panels side by side, of one height. widths: of 24 columns; equal ones unless given."""

    height: int
    panels: Sequence[Builder]
    widths: Sequence[int] = ()


@dataclass(frozen=True)
class Section:
    """A row's head and what is below it. repeat: a variable, one row for each of its values."""

    row_id: int
    title: str
    content: Sequence[Line]
    collapsed: bool = False
    repeat: str | None = None


@dataclass(frozen=True)
class Event:
    """An annotation: a vertical mark wherever the expression has a sample. text: with {{label}}."""

    name: str
    expr: str
    color: str
    title: str
    text: str


@dataclass(frozen=True)
class Board:
    """Everything of one dashboard. variables: beside those that all have. one_service: it shows one at a time."""

    title: str
    description: str
    sections: Sequence[Section]
    since: str
    variables: Sequence[Builder] = ()
    events: Sequence[Event] = ()
    one_service: bool = False
    tags: Sequence[str] = field(default=("pagedserve",))

    @property
    def uid(self) -> str:
        return UIDS[self.title]

    @property
    def file_name(self) -> str:
        return f"{self.uid}.json"

    def to_json(self) -> str:
        """The dashboard's JSON, always the same for the same definition."""
        model: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(self._build()))
        # NOTE: the SDK's model of an annotation lacks what Prometheus' annotations take.
        for made, event in zip(model["annotations"]["list"], self.events, strict=True):
            target = {"datasource": made["datasource"], "expr": event.expr, "interval": "60s", "refId": "Anno"}
            made |= {"target": target, "titleFormat": event.title, "textFormat": event.text, "useValueForTime": False}
        for variable in model["templating"]["list"]:
            for name in _OF_INTERVALS:
                del variable[name]
        for panel in _panels(model):
            panel.pop("repeatDirection", None)
            panel.get("options", {}).pop("footer", None)
        return json.dumps(model, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    def _build(self) -> Any:
        made = Dashboard(f"pagedserve / {self.title}").uid(self.uid).description(self.description)
        made = made.tags(list(self.tags)).readonly().timezone("browser").time(f"now-{self.since}", "now").refresh("30s")
        made = made.tooltip(DashboardCursorSync.CROSSHAIR).timepicker(
            TimePicker().refresh_intervals(["10s", "30s", "1m", "5m", "15m"])
        )
        service = one_inferenceservice() if self.one_service else inferenceservice()
        for variable in (datasource(), cluster(), namespace(), service, pod(), *self.variables):
            made = made.with_variable(variable)
        for event in self.events:
            query = AnnotationQuery().name(event.name).datasource(SOURCE).enable(True).icon_color(event.color)
            made = made.annotation(query)
        for title in UIDS:
            if title != self.title:
                made = made.link(dashboard(title))
        made = made.link(doc("dashboards.md", "Documentation").icon("doc"))
        y = 0
        for section in self.sections:
            row = Row(section.title).id(section.row_id).collapsed(section.collapsed)
            row = row.grid_pos(GridPos(x=0, y=y, w=COLUMNS, h=1))
            y += 1
            if section.repeat is not None:
                row = row.repeat(section.repeat)
            placed = []
            inner = y
            for line in section.content:
                x = 0
                widths = line.widths or [COLUMNS // len(line.panels)] * len(line.panels)
                for panel, width in zip(line.panels, widths, strict=True):
                    placed.append(panel.grid_pos(GridPos(x=x, y=inner, w=width, h=line.height)))
                    x += width
                inner += line.height
            if section.collapsed:
                for panel in placed:
                    row = row.with_panel(panel)
                made = made.with_row(row)
            else:
                made = made.with_row(row)
                for panel in placed:
                    made = made.with_panel(panel)
                y = inner
        return made.build()


def _panels(model: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Its panels and rows, those in collapsed rows too."""
    for panel in model["panels"]:
        yield panel
        yield from panel.get("panels", [])
