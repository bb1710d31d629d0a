"""A client that calls an ASGI app in process, and sees every single write; it may read slowly or go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until `condition()` holds; fails after a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  the states waited for are plain counters
            await asyncio.sleep(0)


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    writes: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of the server-sent events, each of which must be one `data:` line."""
        text = self.body.decode()
        assert text.endswith("\n\n"), text
        events = text[:-2].split("\n\n")
        assert all(e.startswith("data: ") and "\n" not in e for e in events), events
        return [e.removeprefix("data: ") for e in events]

    @property
    def chunks(self) -> list[Any]:
        """The JSON events of a stream that ended well."""
        events = self.events
        assert events[-1] == "[DONE]"
        assert "[DONE]" not in events[:-1]
        return [json.loads(e) for e in events[:-1]]


class Exchange:
    """One request in progress. `answer` fills up as the app writes."""

    def __init__(self, app: Any, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.answer = Answer()
        self.reading = asyncio.Event()
        """Clear it, and the app's next write waits: a client that does not read."""
        self.reading.set()
        self.num_writes_begun = 0
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()
        self._messages = [
            {"type": "http.request", "body": body[:10], "more_body": True},
            {"type": "http.request", "body": body[10:], "more_body": False},
        ]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def disconnect(self) -> None:
        self._gone.set()

    async def wait_for(self, condition: Any) -> None:
        """Returns once `condition()` holds after some write; fails where the app ends before."""
        while not condition():
            assert not self.task.done(), f"ended before: {self.answer}"
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait({changed, self.task}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    async def done(self) -> Answer:
        async with asyncio.timeout(60):
            await self.task
        return self.answer

    async def _receive(self) -> Any:
        if self._messages:
            return self._messages.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.num_writes_begun += 1
        self._changed.set()
        await self.reading.wait()
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        elif message.get("body"):
            self.answer.writes.append(message["body"])
        self._changed.set()


class Client:
    """Speaks JSON to an ASGI app."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def open(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Exchange:
        """Begins a POST. body: bytes go as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Exchange(self._app, "POST", path, data, {"content-type": "application/json", **(headers or {})})

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        return await self.open(path, body, headers).done()

    async def get(self, path: str) -> Answer:
        return await Exchange(self._app, "GET", path, b"", {}).done()

    async def complete(self, prompt: Any = "Hi", **fields: Any) -> Answer:
        return await self.post("/v1/completions", {"model": "model", "prompt": prompt, **fields})

    async def chat(self, content: Any = "Hi", **fields: Any) -> Answer:
        messages = [{"role": "user", "content": content}]
        return await self.post("/v1/chat/completions", {"model": "model", "messages": messages, **fields})
