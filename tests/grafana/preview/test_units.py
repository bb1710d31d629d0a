"""Numbers as Grafana shows them."""

from __future__ import annotations

import math

import pytest

from grafana.preview.units import show


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0.0123, "s", None, "12.3 ms"),
        (2.5, "s", None, "2.5 s"),
        (0.0, "s", None, "0 s"),
        (0.0000042, "s", None, "4.2 µs"),
        (180.0, "s", 0, "3 min"),
        (10_800.0, "s", None, "3 hours"),
        (0.875, "percentunit", 1, "87.5%"),
        (80.0, "percent", None, "80%"),
        (1234.0, "short", None, "1.23 K"),
        (12.0, "reqps", None, "12 req/s"),
        (3 * 1024.0**3, "bytes", None, "3 GiB"),
        (410.0, "watt", None, "410 W"),
        (3.0, "none", 0, "3"),
        (math.nan, "s", None, "-"),
        (math.inf, "none", None, "∞"),
    ],
)
def test_show(value: float, unit: str, decimals: int | None, text: str) -> None:
    assert show(value, unit, decimals) == text


def test_an_unknown_unit_is_an_error() -> None:
    with pytest.raises(ValueError, match="furlong"):
        show(math.nan, "furlong")
