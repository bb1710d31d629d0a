from __future__ import annotations

import math

import pytest

from autoscaling.formula import Formula


@pytest.mark.parametrize(
    ("text", "values", "result"),
    [
        ("a + 2 * b - 1", {"a": 1, "b": 3}, 6),
        ("(a + 2) * b", {"a": 1, "b": 3}, 9),
        ("-a / 4", {"a": 2}, -0.5),
        ("max(a, b, 5)", {"a": 1, "b": 3}, 5),
        ("min(ceil(a), floor(b))", {"a": 1.2, "b": 3.8}, 2),
        ("float(abs(a))", {"a": -2}, 2),
        ("a / b", {"a": 1, "b": 0}, math.inf),  # as Go divides floats
        ("kv-usage", {"kv": 3, "usage": 1}, 2),  # a hyphen is a minus, whatever the trigger's name meant
    ],
)
def test_evaluates(text: str, values: dict[str, float], result: float) -> None:
    formula = Formula(text)
    assert formula.evaluate(values) == result
    assert formula.names == values.keys()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a +", "parsed"),
        ("", "parsed"),
        ("__import__('os')", "understood"),
        ("a.b", "understood"),
        ("a if b else c", "understood"),
        ("'a'", "understood"),
        ("a ** b", "understood"),
        ("exec(a)", "understood"),
    ],
)
def test_refuses(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Formula(text)


def test_a_name_without_a_value() -> None:
    with pytest.raises(ValueError, match="'b'"):
        Formula("a + b").evaluate({"a": 1})
