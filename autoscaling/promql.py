"""How many series a PromQL expression can give, and what it selects. Needs promql-parser, a development dependency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import promql_parser
from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Call,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    StringLiteral,
    SubqueryExpr,
    UnaryExpr,
    VectorSelector,
)


class Series(Enum):
    """The most that an expression gives, whatever the data."""

    SCALAR = "a scalar"
    ONE = "one series without labels"
    ONE_LABELLED = "one series with labels"
    MANY = "several series"


@dataclass(frozen=True, slots=True)
class Selector:
    """A vector selector: a metric and its matchers by label (of one label several times, the last)."""

    metric: str | None
    matchers: dict[str, str]


_ONE_GROUP = {"sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "quantile"}
_KEEP_LABELS = {"label_replace", "label_join"}


def parse(expression: str) -> promql_parser.Expr:
    """Raises `ValueError` for what is no PromQL."""
    return promql_parser.parse(expression)


def series(expression: str) -> Series:
    """Raises `ValueError` for what is no PromQL."""
    return _series(parse(expression))


def one_sample_problem(expression: str) -> str | None:
    """Why KEDA could not use the answer (prometheusScaler: a vector of one sample at most); None when it can."""
    try:
        found = series(expression)
    except ValueError as error:
        return f"is no PromQL: {error}"
    if found is Series.SCALAR:
        return "gives a scalar, which KEDA cannot read: put vector(...) around it"
    if found is Series.MANY:
        return "can give several series, as soon as there are two pods: put an aggregation such as sum(...) around it"
    return None


def selectors(expression: str) -> list[Selector]:
    """Every vector selector of it, in order. Raises `ValueError` for what is no PromQL."""
    return [
        Selector(node.name, {m.name: m.value for m in node.matchers.matchers}) for node in _selectors(parse(expression))
    ]


def outer_aggregations(expression: str) -> set[str]:
    """The aggregations that no other one encloses, such as {"sum"}. Raises `ValueError` for what is no PromQL."""
    return set(_aggregations(parse(expression)))


def _aggregations(node: promql_parser.Expr) -> Iterator[str]:
    match node:
        case AggregateExpr():
            yield str(node.op)
        case ParenExpr() | UnaryExpr() | SubqueryExpr():
            yield from _aggregations(node.expr)
        case BinaryExpr():
            yield from _aggregations(node.lhs)
            yield from _aggregations(node.rhs)
        case Call():
            for argument in node.args:
                yield from _aggregations(argument)


def _selectors(node: promql_parser.Expr) -> Iterator[VectorSelector]:
    match node:
        case VectorSelector():
            yield node
        case MatrixSelector():
            yield node.vector_selector
        case AggregateExpr() | ParenExpr() | UnaryExpr() | SubqueryExpr():
            yield from _selectors(node.expr)
        case BinaryExpr():
            yield from _selectors(node.lhs)
            yield from _selectors(node.rhs)
        case Call():
            for argument in node.args:
                yield from _selectors(argument)


def _series(node: promql_parser.Expr) -> Series:
    match node:
        case NumberLiteral():
            return Series.SCALAR
        case ParenExpr() | UnaryExpr() | SubqueryExpr():
            return _series(node.expr)
        case AggregateExpr():
            return _of_aggregation(node)
        case BinaryExpr():
            return _of_operator(str(node.op), _series(node.lhs), _series(node.rhs))
        case Call():
            return _of_call(node)
    return Series.MANY


def _of_aggregation(node: AggregateExpr) -> Series:
    if str(node.op) in {"topk", "bottomk"}:
        single = isinstance(node.param, NumberLiteral) and node.param.val == 1 and node.modifier is None
        return Series.ONE_LABELLED if single else Series.MANY
    if str(node.op) not in _ONE_GROUP:
        return Series.MANY
    inner = _series(node.expr)
    if node.modifier is None or (node.modifier.type == AggModifierType.By and not node.modifier.labels):
        return Series.ONE
    return inner if inner in {Series.ONE, Series.ONE_LABELLED} else Series.MANY


def _of_operator(operator: str, left: Series, right: Series) -> Series:
    if operator in {"and", "unless"}:
        return left
    if operator == "or":
        # NOTE: two single series stand side by side unless their labels are the same, as where both have none.
        return Series.ONE if left is right is Series.ONE else Series.MANY
    if left is Series.SCALAR:
        return right
    if right is Series.SCALAR:
        return left
    if Series.MANY in {left, right}:
        return Series.MANY
    return Series.ONE if left is right is Series.ONE else Series.ONE_LABELLED


def _of_call(node: Call) -> Series:
    match node.func.name:
        case "scalar" | "time" | "pi":
            return Series.SCALAR
        case "vector":
            return Series.ONE
        case "absent" | "absent_over_time":
            return Series.ONE_LABELLED
        case "histogram_quantile":
            return _of_quantile(node)
    vectors = [s for a in node.args if not isinstance(a, StringLiteral) and (s := _series(a)) is not Series.SCALAR]
    if len(vectors) != 1:
        return Series.MANY if vectors else Series.ONE
    return Series.ONE_LABELLED if node.func.name in _KEEP_LABELS and vectors[0] is Series.ONE else vectors[0]


def _of_quantile(node: Call) -> Series:
    """One series where the buckets are grouped by `le` alone, which the function takes away."""
    buckets = node.args[1]
    while isinstance(buckets, ParenExpr):
        buckets = buckets.expr
    if isinstance(buckets, AggregateExpr) and str(buckets.op) in _ONE_GROUP and buckets.modifier is not None:
        by_le = buckets.modifier.type == AggModifierType.By and set(buckets.modifier.labels) == {"le"}
        return Series.ONE if by_le else Series.MANY
    return Series.MANY
