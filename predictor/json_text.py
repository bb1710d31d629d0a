"""What is checked of JSON text beside its syntax: how deeply it is nested, before it is parsed, and keys given twice.

Parsers and whatever walks their result (templates, validators, `repr`) recurse: a bound here, far below Python's, keeps
every one of them from failing on nesting alone. Of equal keys parsers take the last and say nothing (RFC 8259, section
4, calls that unpredictable): what the caller meant is not known, so it is an error.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import orjson

from engine.errors import RequestError

MAX_JSON_DEPTH = 128
"""Objects and lists within each other, in a body or in JSON that a string carries."""

_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = np.zeros(256, np.int32)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


class JsonTooDeepError(RequestError):
    """JSON nested more deeply than `MAX_JSON_DEPTH` (HTTP 400)."""

    code = "json_too_deep"


class DuplicateKeyError(RequestError):
    """A key that stands twice in one JSON object (HTTP 400)."""

    code = "duplicate_key"


def load_json(text: bytes | str, what: str, *, param: str | None = None) -> Any:
    """The value of JSON text. what: begins the message of an error.

    Raises `JsonTooDeepError`, `DuplicateKeyError`, or `orjson.JSONDecodeError` for what is not JSON.
    """
    check_depth(text, what, param=param)
    value = orjson.loads(text)
    check_keys(text, what, param=param)
    return value


def check_keys(text: bytes | str, what: str, *, param: str | None = None) -> None:
    """Raises `DuplicateKeyError`. The text has been parsed, and is no deeper than the bound."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise DuplicateKeyError(f"{what} holds the key {key[:80]!r} twice", param=param)
            keys.add(key)

    json.loads(text, object_pairs_hook=check)


def check_depth(text: bytes | bytearray | str, what: str, *, param: str | None = None) -> None:
    """Raises `JsonTooDeepError`, whose message begins with `what`. Text that is not JSON may pass: the parser tells."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # NOTE: nearly every body has fewer brackets than the bound, and is done with here.
    if data.count(b"[") + data.count(b"{") > MAX_JSON_DEPTH and _depth(data) > MAX_JSON_DEPTH:
        raise JsonTooDeepError(f"{what} is nested more deeply than {MAX_JSON_DEPTH} levels", param=param)


def _depth(data: bytes | bytearray) -> int:
    """Exact for valid JSON; takes time and memory in proportion to the number of brackets and quotes."""
    codes = np.frombuffer(_ESCAPE.sub(b"", data).translate(None, _OTHERS), np.uint8)
    inside_string = np.logical_xor.accumulate(codes == ord('"'))
    steps = np.where(inside_string, 0, _STEPS[codes])
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))
