"""Numbers as Grafana's units show them."""

from __future__ import annotations

import math
from collections.abc import Callable


def show(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit. Raises `ValueError` for a unit that no dashboard uses yet."""
    if unit not in _FORMS:
        raise ValueError(f"the preview does not know the unit {unit!r}: add it to grafana/preview/units.py")
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return _FORMS[unit](value, decimals)


def _plain(value: float, decimals: int | None) -> str:
    if decimals is None:
        decimals = 0 if value == int(value) else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
        text = f"{value:.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{decimals}f}"


def _scaled(value: float, decimals: int | None, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while abs(value) >= base and power < len(suffixes) - 1:
        value /= base
        power += 1
    return _plain(value, decimals) + suffixes[power]


def _seconds(value: float, decimals: int | None) -> str:
    size = abs(value)
    for bound, factor, suffix in ((1e-3, 1e6, " µs"), (1, 1e3, " ms"), (120, 1, " s"), (7200, 1 / 60, " min")):
        if size < bound:
            return "0 s" if size == 0 else _plain(value * factor, decimals) + suffix
    return _plain(value / 3600, decimals) + " hours"


_THOUSANDS = ("", " K", " M", " B")
_FORMS: dict[str, Callable[[float, int | None], str]] = {
    "none": _plain,
    "short": lambda value, decimals: _scaled(value, decimals, 1000, ("", " K", " Mil", " Bil")),
    "reqps": lambda value, decimals: _scaled(value, decimals, 1000, _THOUSANDS) + " req/s",
    "count:tok/s": lambda value, decimals: _scaled(value, decimals, 1000, _THOUSANDS) + " tok/s",
    "ops": lambda value, decimals: _scaled(value, decimals, 1000, _THOUSANDS) + " ops/s",
    "celsius": lambda value, decimals: _plain(value, decimals) + " °C",
    "watt": lambda value, decimals: _scaled(value, decimals, 1000, ("", " k", " M")) + " W",
    "percent": lambda value, decimals: _plain(value, decimals) + "%",
    "percentunit": lambda value, decimals: _plain(100 * value, decimals) + "%",
    "bytes": lambda value, decimals: _scaled(value, decimals, 1024, (" B", " KiB", " MiB", " GiB", " TiB")),
    "s": _seconds,
}
