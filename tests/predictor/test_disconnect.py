"""A client that goes away ends its work, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse

from predictor.disconnect import WatchedStreamingResponse, run_until_disconnect
from predictor.http_errors import add_exception_handlers
from tests.predictor.openai.asgi_client import Client, until


class Work:
    """Async work with a visible state."""

    def __init__(self) -> None:
        self.state = "new"
        self.go_on = asyncio.Event()

    async def run(self) -> str:
        self.state = "running"
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.state = "cancelled"
            raise
        self.state = "done"
        return "result"

    async def chunks(self) -> AsyncGenerator[str, None]:
        try:
            for index in range(100):
                yield f"data: {index}\n\n"
                self.state = f"sent {index}"
                if index == 2:
                    await self.go_on.wait()
        finally:
            self.state = "closed"


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def client(work: Work) -> Client:
    app = FastAPI()
    add_exception_handlers(app)

    async def whole(request: Request) -> JSONResponse:
        await request.body()
        return JSONResponse(await run_until_disconnect(request, work.run()))

    async def streamed(request: Request) -> WatchedStreamingResponse:
        await request.body()
        return WatchedStreamingResponse(work.chunks())

    async def failing(request: Request) -> JSONResponse:
        await request.body()

        async def fail() -> None:
            raise ValueError("wrong")

        try:
            await run_until_disconnect(request, fail())
        except ValueError as error:
            return JSONResponse(str(error), 418)
        raise AssertionError

    app.add_api_route("/whole", whole, methods=["POST"])
    app.add_api_route("/streamed", streamed, methods=["POST"], response_model=None)
    app.add_api_route("/failing", failing, methods=["POST"])
    return Client(app)


async def test_the_result_is_passed_on(client: Client, work: Work) -> None:
    work.go_on.set()
    answer = await client.post("/whole", {})
    assert (answer.status, answer.json) == (200, "result")


async def test_an_error_is_passed_on(client: Client) -> None:
    answer = await client.post("/failing", {})
    assert (answer.status, answer.json) == (418, "wrong")


async def test_unstreamed_work_is_cancelled(client: Client, work: Work) -> None:
    exchange = client.open("/whole", {})
    await until(lambda: work.state == "running")
    exchange.disconnect()
    assert (await exchange.done()).status == 499
    assert work.state == "cancelled"


async def test_a_stream_goes_out_whole(client: Client, work: Work) -> None:
    work.go_on.set()
    answer = await client.post("/streamed", {})
    assert len(answer.events) == 100
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert work.state == "closed"


async def test_a_stream_is_closed_when_the_client_goes(client: Client, work: Work) -> None:
    exchange = client.open("/streamed", {})
    await until(lambda: work.state == "sent 2")
    exchange.disconnect()
    answer = await exchange.done()
    assert len(answer.events) == 3
    assert work.state == "closed"


async def test_a_stream_is_closed_when_the_client_goes_before_the_first_chunk(client: Client, work: Work) -> None:
    exchange = client.open("/streamed", {})
    exchange.disconnect()
    await exchange.done()
    assert work.state in ("new", "closed")  # a generator that never began has nothing to close


async def test_cancelling_the_handler_cancels_the_work(client: Client, work: Work) -> None:
    exchange = client.open("/whole", {})
    await until(lambda: work.state == "running")
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    assert work.state == "cancelled"
