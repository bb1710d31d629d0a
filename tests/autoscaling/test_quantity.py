from __future__ import annotations

from fractions import Fraction

import pytest

from autoscaling.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80", Fraction(80)),
        ("0.8", Fraction(4, 5)),  # exact, where a float is not
        ("800m", Fraction(4, 5)),
        ("-1.5", Fraction(-3, 2)),
        ("4Gi", Fraction(4 * 2**30)),  # binary
        ("4G", Fraction(4 * 10**9)),  # decimal
        ("3e2", Fraction(300)),  # an exponent
        ("2E", Fraction(2 * 10**18)),  # exa, not an exponent
        (48, Fraction(48)),  # an int-or-string
    ],
)
def test_parses(text: str | int, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "m", "1 G", "1gi", "1e", "0x10", "ten"])
def test_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)
