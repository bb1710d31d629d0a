"""Every dashboard, and the files that they are generated into."""

from __future__ import annotations

from pathlib import Path

from grafana.board import Board
from grafana.boards.autoscaling import autoscaling
from grafana.boards.engine import engine
from grafana.boards.service import service_overview
from grafana.boards.versions import compare_versions

FOLDER = Path(__file__).parent / "dashboards"


def boards() -> list[Board]:
    """Freshly built: the SDK's builders are used up by building."""
    return [service_overview(), engine(), autoscaling(), compare_versions()]


def write(folder: Path = FOLDER) -> list[Path]:
    """Writes each dashboard's JSON and returns the files."""
    made = []
    for board in boards():
        file = folder / board.file_name
        file.write_text(board.to_json(), encoding="utf-8")
        made.append(file)
    return made
