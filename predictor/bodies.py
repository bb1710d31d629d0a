"""JSON request bodies, read strictly."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from engine.errors import RequestError

B = TypeVar("B", bound=BaseModel)


MAX_BODY_BYTES = 64 * 1024 * 1024


class BodyTooLargeError(RequestError):
    """The body is over the bound (HTTP 413)."""

    code = "request_too_large"


async def read_json(request: Request) -> Any:
    """The body as a JSON value. Raises `RequestError`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLargeError(f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None


async def read_body(request: Request, kind: type[B]) -> B:
    """The body as a `kind`, whose first violation is named. Raises `RequestError`."""
    value = await read_json(request)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{where}: {first['msg']}" if where else first["msg"], param=where or None) from None
