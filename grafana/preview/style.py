"""Grafana's dark theme: colours by name, the palette of series, thresholds, overrides."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

BACKGROUND, PANEL, BORDER, GRID = "#111217", "#181b1f", "#2a2d34", "#26292f"
TEXT, FAINT = "#d0d1dc", "#8e8f9b"
NAMED = {
    "green": "#73bf69", "red": "#f2495c", "orange": "#ff9830", "yellow": "#fade2a", "blue": "#5794f2",
    "purple": "#b877d9", "text": TEXT,
}  # fmt: skip
PALETTE = (
    "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0", "#37872d", "#fade2a",
    "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62",
)  # fmt: skip
SCHEMES = {"Blues": "Blues_r", "Oranges": "Oranges_r", "Greens": "Greens_r"}
"""Grafana's schemes as matplotlib's. NOTE: on the dark theme Grafana turns them round: the most is the lightest."""


def color_at(steps: Sequence[Mapping[str, Any]], value: float) -> str:
    """The colour of the last threshold that the value reaches."""
    found = steps[0]["color"] if steps else "text"
    for step in steps:
        if step["value"] is None or value >= step["value"]:
            found = step["color"]
    return NAMED[found]


def overrides_of(panel: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the panel's overrides say of the field with this name, by property."""
    found: dict[str, Any] = {}
    for override in panel["fieldConfig"].get("overrides", []):
        kind, option = override["matcher"]["id"], override["matcher"]["options"]
        if kind == "byName":
            matches = option == name
        elif kind == "byRegexp":
            matches = re.search(option.strip("/"), name) is not None
        else:
            raise ValueError(f"the preview does not know the matcher {kind!r}: add it to grafana/preview/style.py")
        if matches:
            found |= {one["id"]: one["value"] for one in override["properties"]}
    return found


def mapping_of(defaults: Mapping[str, Any], value: float) -> tuple[str, str] | None:
    """(text, colour) that a value mapping gives to a number, if one does."""
    for mapping in defaults.get("mappings") or []:
        if mapping["type"] == "special":
            found = mapping["options"]["result"] if math.isnan(value) else None
        else:
            found = mapping["options"].get(f"{value:g}")
        if found is not None:
            return found["text"], NAMED[found["color"]]
    return None
