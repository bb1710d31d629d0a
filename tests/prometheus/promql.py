"""PromQL taken apart: which metrics and bucket boundaries an expression names, and its durations made shorter."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import promql_parser

_STRING = r'"(?:\\.|[^"\\])*"' + r"|'(?:\\.|[^'\\])*'" + r"|`[^`]*`"
_COMMENT = r"#[^\n]*"
_DURATION = r"(?:\d+(?:ms|[smhdwy]))+"
_TOKEN = re.compile(rf"(?P<text>{_STRING}|{_COMMENT})|(?P<range>\[[^\]]*\])|(?P<offset>\boffset\s+-?\s*{_DURATION})")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}


def nodes(expression: str) -> list[Any]:
    """Every node of the parsed expression. Raises `ValueError` where it is no PromQL."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expression), found.append)
    return found


def selectors(expression: str) -> list[Any]:
    """Its vector selectors, those of ranges included."""
    return [node for node in nodes(expression) if isinstance(node, promql_parser.VectorSelector)]


def metric_names(expression: str) -> set[str]:
    """Names of the metrics that it reads."""
    names = {selector.name for selector in selectors(expression)}
    assert None not in names, f"a selector without a metric name: {expression}"
    return names


def matched_values(expression: str, label: str) -> set[tuple[str, str]]:
    """(metric, value) of each matcher of `label`."""
    return {
        (selector.name, matcher.value)
        for selector in selectors(expression)
        for matcher in selector.matchers.matchers
        if matcher.name == label
    }


def durations(expression: str) -> list[timedelta]:
    """Ranges, subquery steps and offsets, in the order of the text."""
    values = (getattr(node, name, None) for node in nodes(expression) for name in ("range", "step", "offset"))
    return [value for value in values if isinstance(value, timedelta)]


def shorten_duration(text: str, factor: int) -> str:
    """`5m` by 15 is `20s`; what is not whole seconds comes in milliseconds."""
    ms = sum(int(number) * _UNIT_MS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdwy])", text))
    assert ms % factor == 0, f"{text} does not divide by {factor}"
    ms //= factor
    return f"{ms}ms" if ms % 1000 else f"{ms // 1000}s"


def shorten(expression: str, factor: int) -> str:
    """The same expression with every range, subquery step and offset divided by `factor`.

    NOTE: the parser has no writable nodes, so it is the text that is rewritten, outside of strings and comments; the
    parser then confirms that every duration has become shorter and that nothing else has changed.
    """

    def rewrite(match: re.Match[str]) -> str:
        if match["text"] is not None:
            return match[0]
        return re.sub(_DURATION, lambda duration: shorten_duration(duration[0], factor), match[0])

    made = _TOKEN.sub(rewrite, expression)
    assert [d * factor for d in durations(made)] == durations(expression), f"{expression}\nbecame\n{made}"
    assert [type(n) for n in nodes(made)] == [type(n) for n in nodes(expression)]
    return made
