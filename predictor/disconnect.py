"""The client that goes away: one watcher for streamed and unstreamed answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that went away before it was answered; nobody reads it but logs and metrics."""
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""No cache and no buffering proxy between: an event reaches the client when it is made."""


class ClientDisconnectedError(Exception):
    """The HTTP client closed its connection before it was answered; answered with a 499 that nobody reads."""


async def run_until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away.

    The request's body must have been read already: what comes after it is only the disconnect. Whatever `work` raises
    is passed on. Raises `ClientDisconnectedError` when the client has gone.
    """
    return await _race(request.receive, work)


class WatchedStreamingResponse(Response):
    """Streams the chunks of an async generator, and closes it as soon as the client goes away.

    The generator is closed (`aclose`) in every case before the response ends, so that a `finally` or `async with` in it
    releases what it holds. An exception of the generator ends the connection: turn expected errors into chunks.
    """

    def __init__(
        self,
        content: AsyncGenerator[str | bytes, None],
        *,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = "text/event-stream",
    ) -> None:
        self.chunks = content
        self.status_code = status_code
        self.media_type = media_type
        self.background = None
        self.init_headers({**STREAM_HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _race(receive, self._send_all(send))
        except ClientDisconnectedError:
            return
        finally:
            await self.chunks.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self.chunks:
            body = chunk.encode() if isinstance(chunk, str) else chunk
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _race(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        watcher.result()
        raise ClientDisconnectedError
    finally:
        # NOTE: both tasks have ended before the response does: a cancelled generation has aborted its streams by then.
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
