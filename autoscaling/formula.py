"""The part of KEDA's formula language (expr-lang) that arithmetic needs: operators, numbers, triggers, functions."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

_FUNCTIONS: dict[str, Callable[..., float]] = {
    "max": max,
    "min": min,
    "ceil": math.ceil,
    "floor": math.floor,
    "abs": abs,
    "float": float,
}
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class Formula:
    """A parsed formula. Raises `ValueError` for what is no formula, or uses more of the language than this knows."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._body = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ValueError(f"the formula {text!r} cannot be parsed: {error.msg}") from None
        calls = [node.func for node in ast.walk(self._body) if isinstance(node, ast.Call)]
        self.names = {
            node.id for node in ast.walk(self._body) if isinstance(node, ast.Name) and not any(node is c for c in calls)
        }
        """The triggers that it names."""
        # NOTE: evaluated once, as KEDA's webhook does with stand-ins, so that what cannot run is found here.
        self.evaluate(dict.fromkeys(self.names, -1.0))

    def evaluate(self, values: Mapping[str, float]) -> float:
        """Raises `ValueError` for a name without a value. A division by zero is infinite, as in Go."""
        return float(self._evaluate(self._body, values))

    def _evaluate(self, node: ast.expr, values: Mapping[str, float]) -> float:
        match node:
            case ast.Constant(value=bool() | str()):
                pass
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name):
                if name not in values:
                    raise ValueError(f"the formula {self.text!r} names {name!r}, which is the name of no trigger")
                return values[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._evaluate(operand, values)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return _divide(self._evaluate(left, values), self._evaluate(right, values))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self._evaluate(left, values), self._evaluate(right, values))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*(self._evaluate(argument, values) for argument in arguments))
        raise ValueError(f"the formula {self.text!r} holds {ast.unparse(node)!r}, which is not understood here")


def _divide(left: float, right: float) -> float:
    if right == 0:
        return math.nan if left == 0 else math.copysign(math.inf, left)
    return left / right
