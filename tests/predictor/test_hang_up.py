"""A client that hangs up while a pipelined request of it waits ends the work for the first one, on real connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from predictor import hang_up
from predictor.http_protocol import HttpProtocol
from predictor.tls import TlsFiles
from tests.certificates import Authority
from tests.predictor.oip.conftest import until

LIMIT = 30.0
FIRST = b"POST /first HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
UPGRADE = FIRST.replace(b"content-length", b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length")
SECOND = FIRST.replace(b"first", b"second")
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Work:
    """An app that answers when it is told to, and watches for its client meanwhile, as `predictor.disconnect` does."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.running = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.left = asyncio.Event()
        self.connection: HttpProtocol | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        watching = asyncio.ensure_future(self._watch(receive))
        working = asyncio.ensure_future(self.may_answer.wait())
        await asyncio.sleep(0)
        self.running.set()
        await asyncio.wait((watching, working), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            watching.cancel()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})
        working.cancel()

    async def _watch(self, receive: Receive) -> None:
        assert (await receive())["type"] == "http.disconnect"
        self.left.set()


@asynccontextmanager
async def serving(work: Work, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(work, http=HttpProtocol, ws="none", log_config=None, lifespan="off")
    config.load()

    def connect() -> HttpProtocol:
        work.connection = HttpProtocol(config, ServerState(), {}, loop)
        return work.connection

    server = await loop.create_server(connect, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        if work.connection is not None:
            work.connection.transport.abort()
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def connected(port: int, **more: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **more)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def run(loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(main, LIMIT))


async def until_reading(work: Work, is_reading: bool) -> None:
    # NOTE: an upgrade goes to a protocol of its own, and the transport stays.
    connection = work.connection
    assert connection is not None
    await until(lambda: connection.transport.is_reading() is is_reading, LIMIT)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_up, "POLL_SECONDS", 0.02)


@pytest.mark.parametrize("is_piped", [True, False], ids=["pipelined", "alone"])
@pytest.mark.parametrize("leave", [asyncio.StreamWriter.close, asyncio.StreamWriter.write_eof])
@pytest.mark.parametrize("first", [FIRST, UPGRADE], ids=["httptools", "h11"])
@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_a_client_that_hangs_up_is_missed(loop: Any, first: bytes, leave: Any, is_piped: bool) -> None:
    async def main() -> None:
        work = Work()
        async with serving(work) as port, connected(port) as (_, writer):
            writer.write(first)
            await work.running.wait()
            if is_piped:
                writer.write(SECOND)
                await until_reading(work, False)
            leave(writer)
            await work.left.wait()
            assert work.paths == ["/first"]

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_over_tls_too(loop: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")

    async def main() -> None:
        work = Work()
        context = TlsFiles(pair.cert, pair.key).http_context()
        async with serving(work, context) as port, connected(port, ssl=authority.context()) as (_, writer):
            writer.write(FIRST)
            await work.running.wait()
            writer.write(SECOND)
            await until_reading(work, False)
            writer.transport.abort()
            await work.left.wait()

    run(loop, main())


@pytest.mark.parametrize("first", [FIRST, UPGRADE], ids=["httptools", "h11"])
@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_a_client_that_waits_gets_both_answers(loop: Any, first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = hang_up.HangUpWatch._look

    def counted(watch: hang_up.HangUpWatch) -> None:
        looks.append(watch)
        look(watch)

    monkeypatch.setattr(hang_up.HangUpWatch, "_look", counted)

    async def main() -> None:
        work = Work()
        async with serving(work) as port, connected(port) as (reader, writer):
            writer.write(first)
            await work.running.wait()
            writer.write(SECOND)
            await until_reading(work, False)
            await until(lambda: len(looks) >= 3, LIMIT)
            work.may_answer.set()
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\nok")
            assert work.paths == ["/first", "/second"]
            assert not work.left.is_set()
            await until_reading(work, True)
            # The watch is over: what follows is read, and the connection lives on.
            writer.write(FIRST)
            await reader.readuntil(b"\r\n\r\nok")

    run(loop, main())
