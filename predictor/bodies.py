"""Request bodies, read strictly and no further than the server's bound."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from engine.errors import RequestError
from predictor.json_text import load_json

B = TypeVar("B", bound=BaseModel)


class BodyTooLargeError(RequestError):
    """The body is over the bound (HTTP 413); the connection is closed, as the rest of the body is not read."""

    code = "request_too_large"


class UnsupportedEncodingError(RequestError):
    """A body in a content encoding that is not read here (HTTP 415)."""

    code = "unsupported_encoding"


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body, of at most `limit` bytes; beyond it nothing is read, be the length declared or not.

    Raises `BodyTooLargeError` and `UnsupportedEncodingError`.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedEncodingError(f"content encoding {encoding[:40]!r} is not supported; send the body as it is")
    too_large = BodyTooLargeError(
        f"the request body is larger than {limit} bytes (--max_body_size); send less at a time"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 20 or int(declared) > limit):
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > limit:
            raise too_large
        body += chunk
    return bytes(body)


async def read_json(request: Request, limit: int) -> Any:
    """The body as a JSON value. Raises `RequestError`."""
    body = await read_bytes(request, limit)
    try:
        return load_json(body, "the body")
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None


async def read_body(request: Request, kind: type[B], limit: int) -> B:
    """The body as a `kind`, whose first violation is named. Raises `RequestError`."""
    value = await read_json(request, limit)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{where}: {first['msg']}" if where else first["msg"], param=where or None) from None
