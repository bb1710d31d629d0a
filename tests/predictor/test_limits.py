"""docs/limits.md against the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from engine.errors import PagedServeError
from predictor.config import ServerConfig
from predictor.flags import FLAGS

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
VALUES = re.findall(r"`((?:engine|predictor)\.[\w.]+)`(?: = | \| )(\d+)", PAGE)
OWNERS = (
    "engine.sampling_params",
    "predictor.oip.plan",
    "predictor.instances",
    "predictor.json_text",
    "engine.streams",
)
NO_LIMITS_OF_REQUESTS = {"engine.streams.MAX_PENDING_DELTAS"}


def look_up(path: str) -> Any:
    """The value at a dotted path: a module's, or a class's in it."""
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            value = getattr(value, name)
        return value
    raise AssertionError(f"nothing is called {path}")


@pytest.mark.parametrize(("path", "value"), VALUES)
def test_every_value_is_the_codes(path: str, value: str) -> None:
    if path.startswith("predictor.config.ServerConfig."):
        assert ServerConfig.__dataclass_fields__[path.rpartition(".")[2]].default == int(value)
    else:
        assert look_up(path) == int(value)


def test_no_bound_is_left_out() -> None:
    named = {path for path, _ in VALUES}
    assert len(named) > 20
    for owner in OWNERS:
        constants = {f"{owner}.{name}" for name in vars(importlib.import_module(owner)) if name.startswith("MAX_")}
        assert constants - NO_LIMITS_OF_REQUESTS <= named


def test_every_flag_and_error_exists() -> None:
    flags = {flag.name for flag in FLAGS}
    assert set(re.findall(r"`--(\w+)`", PAGE)) <= flags
    modules = [importlib.import_module(f"predictor.{name}") for name in ("bodies", "json_text", "oip.errors")]
    modules.append(importlib.import_module("engine.errors"))
    for name in set(re.findall(r"`(\w+Error)`", PAGE)):
        found = next(getattr(module, name) for module in modules if hasattr(module, name))
        assert issubclass(found, PagedServeError)
