"""Many streams at once on a server, read and thrown away by one thread."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from types import TracebackType
from typing import Any, Self

import httpx

from tests.e2e.server import Server, until

END = b"\r\n0\r\n\r\n"
"""Of an answer in chunks; it may come in two pieces."""


class Streams:
    """`number` streamed completions at any time, from entering the context to leaving it.

    Each asks for up to `max_tokens` tokens. One in four is left in its midst, as by a client that goes away; the others
    end by themselves. What ends is replaced. gone: streams left; done: streams read to the end.
    """

    def __init__(self, server: Server, number: int, *, max_tokens: int = 300, prompt_tokens: int = 24) -> None:
        url = httpx.URL(server.http_url)
        self._address = (url.host, url.port)
        self._server = server
        self._number = number
        self._max_tokens = max_tokens
        self._prompt_tokens = prompt_tokens
        self._rng = random.Random(0)
        self.gone = self.done = 0
        self._stop = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self._server.metric("requests_running") >= self._number, f"{self._number} streams to run")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(self._one_after_the_other()) for _ in range(self._number)]
            await self._stop.wait()
            for stream in streams:
                stream.cancel()

    async def _one_after_the_other(self) -> None:
        while True:
            reader, writer = await asyncio.open_connection(*self._address)
            try:
                writer.write(self._request())
                chunks = self._rng.randrange(5, 50) if self._rng.random() < 0.25 else None
                last = b""
                while chunks is None or chunks > 0:
                    data = await reader.read(65536)
                    assert data, "the server ended a stream before its end"
                    last = (last + data)[-len(END) :]
                    if last == END:
                        self.done += 1
                        break
                    chunks = None if chunks is None else chunks - 1
                else:
                    self.gone += 1
            finally:
                writer.close()

    def _request(self) -> bytes:
        sampling: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "stream": True}
        max_tokens = self._rng.randrange(self._max_tokens // 2, self._max_tokens)
        prompt = [self._rng.randrange(3, 200) for _ in range(self._prompt_tokens)]
        body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, **sampling}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n"
        return f"{head}content-type: application/json\r\n\r\n".encode() + body
