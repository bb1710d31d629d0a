"""From the bytes of a request to its type, with errors that name the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from engine.brief import brief_text
from engine.errors import InvalidParameterError, RequestError
from predictor.bodies import decode, read_bytes
from predictor.json_text import check_depth, check_keys

T = TypeVar("T")

MAX_MESSAGE = 512
"""Characters read at either end of msgspec's message: names and values of the body, of any length, stand in it."""
# NOTE: msgspec says what is wrong and, after this mark, where. Tests hold both forms.
PATH_MARK = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)


async def read_request(http: Request, kind: type[T], limit: int) -> T:
    """The body as `kind`. Raises as `bodies.read_bytes`, or `RequestError` that names the field at fault."""
    return await decode(await read_bytes(http, limit), lambda body: decode_request(body, kind))


def decode_request(body: bytes, kind: type[T]) -> T:
    """The JSON `body` as `kind`. Raises `RequestError` with `param` set where a field is at fault."""
    check_depth(body, "the body")
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    check_keys(body, "the body")
    return request


def _named(message: str) -> RequestError:
    if len(message) > 2 * MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + message[-MAX_MESSAGE:]
    match = PATH_MARK.match(message)
    what, path = (match["what"], match["path"]) if match else (message, None)
    path = path and brief_text(path)
    prefix = f"{path}." if path else ""
    if missing := MISSING.fullmatch(what):
        param = prefix + missing["name"]
        return InvalidParameterError(f"`{param}` is required", param=param, code="missing_required_parameter")
    if unknown := UNKNOWN.fullmatch(what):
        param = brief_text(prefix + unknown["name"])
        return InvalidParameterError(
            f"`{param}` is not a field this server knows: remove it", param=param, code="unknown_parameter"
        )
    problem = brief_text(what[:1].lower() + what[1:])
    if not path:
        return RequestError(f"the body is wrong: {problem}")
    return InvalidParameterError(f"`{path}` is wrong: {problem}", param=path, code="invalid_type")
