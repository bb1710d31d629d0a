"""Kubernetes quantities, such as 80, 0.8, 800m or 4Gi."""

from __future__ import annotations

import re
from fractions import Fraction

_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_SUFFIXES |= {suffix: Fraction(1000 ** (i + 1)) for i, suffix in enumerate("kMGTPE")}
_SUFFIXES |= {f"{suffix}i": Fraction(1024 ** (i + 1)) for i, suffix in enumerate("KMGTPE")}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")


def parse_quantity(text: str | int | float) -> Fraction:
    """The exact value of a resource.Quantity. Raises `ValueError`."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity (such as 80, 0.8, 800m or 4Gi)")
    number, exponent, suffix = match.groups()
    if exponent is not None:
        return Fraction(number) * Fraction(10) ** int(exponent[1:])
    return Fraction(number) * _SUFFIXES[suffix or ""]
