"""Request bodies, read strictly and no further than the server's bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from engine.brief import brief_text
from engine.errors import RequestError
from predictor.json_text import load_json

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")

MAX_INLINE_BODY = 64 * 1024
"""Bytes of a body that are decoded on the event loop: about a millisecond or two. More goes to a thread."""
_DECODERS = ThreadPoolExecutor(2, thread_name_prefix="json")
"""Of the process: a thread gives way to the event loop between two steps of Python, but two cannot decode faster."""


class BodyTooLargeError(RequestError):
    """The body is over the bound (HTTP 413); the connection is closed, as the rest of the body is not read."""

    code = "request_too_large"


class UnsupportedEncodingError(RequestError):
    """A body in a content encoding that is not read here (HTTP 415)."""

    code = "unsupported_encoding"


def single_header(request: Request, name: str) -> str | None:
    """The value of a header that has one meaning only. Raises `RequestError` where it stands twice."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise RequestError(f"the header {name} is given {len(values)} times; give it once")
    return values[0] if values else None


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body, of at most `limit` bytes; beyond it nothing is read, be the length declared or not.

    Raises `BodyTooLargeError`, `UnsupportedEncodingError`, and `RequestError` for two content encodings.
    """
    encoding = single_header(request, "content-encoding") or "identity"
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


async def decode(body: bytes, work: Callable[[bytes], T]) -> T:
    """`work(body)`, on a thread of its own where the body is long enough to hold up the event loop."""
    return await run_sized(len(body), lambda: work(body))


async def run_sized(size: int, work: Callable[[], T]) -> T:
    """`work()`, on the decoders' threads where what it reads, in bytes or elements, is over `MAX_INLINE_BODY`."""
    if size <= MAX_INLINE_BODY:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_DECODERS, work)


async def read_json(request: Request, limit: int) -> Any:
    """The body as a JSON value. Raises `RequestError`."""
    return await decode(await read_bytes(request, limit), _json_value)


async def read_body(request: Request, kind: type[B], limit: int) -> B:
    """The body as a `kind`, whose first violation is named. Raises `RequestError`."""
    return await decode(await read_bytes(request, limit), lambda body: _model(body, kind))


def _json_value(body: bytes) -> Any:
    try:
        return load_json(body, "the body")
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None


def _model(body: bytes, kind: type[B]) -> B:
    value = _json_value(body)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = brief_text(".".join(str(part) for part in first["loc"]))
        raise RequestError(f"{where}: {first['msg']}" if where else first["msg"], param=where or None) from None
