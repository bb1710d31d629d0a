"""Inference over HTTP that finds no room, is cut short or fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import RequestAbortedError
from predictor.model import PagedModel
from tests.fake_engine import FakeEngine
from tests.predictor.oip.conftest import text_request, until


async def test_M6_a_full_queue_is_429_with_retry_after(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False), max_waiting_requests=1)
    first = asyncio.create_task(server.infer(text_request("Hi")))
    await until(lambda: server.engine.num_waiting > 0)
    response = await server.infer(text_request("Hi"))
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert list(response.json()) == ["error"]
    server.engine.release()
    assert (await first).status_code == 200


async def test_a_batch_is_taken_whole_or_not_at_all(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False), max_waiting_requests=4)
    first = asyncio.create_task(server.infer(text_request("a")))
    await until(lambda: server.engine.num_waiting > 0)
    assert (await server.infer(text_request("a", "b", parameters={"n": 2}))).status_code == 429
    assert server.engine.num_requests == 1
    server.engine.release()
    assert (await first).status_code == 200


async def test_timeout_is_a_deadline_in_microseconds(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False))
    response = await server.infer(text_request("Hi", parameters={"timeout": 20_000}))
    assert (response.status_code, list(response.json())) == (504, ["error"])
    assert server.engine.num_requests == 0


async def test_an_engine_that_dies_is_503_and_so_is_an_abort(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(fail_after=2))
    assert (await server.infer(text_request("Hi"))).status_code == 503
    server = await serve(FakeEngine(admitting=False))
    waiting = asyncio.create_task(server.infer(text_request("a", "b")))
    await until(lambda: server.engine.num_requests == 2)
    server.engine.abort_all(RequestAbortedError("the drain timeout has passed"))
    response = await waiting
    assert (response.status_code, response.json()) == (503, {"error": "the drain timeout has passed"})


async def test_cancelling_the_call_aborts_every_prompt(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False))
    waiting = asyncio.create_task(server.infer(text_request("a", "b")))
    await until(lambda: server.engine.num_requests == 2)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert server.engine.num_requests == 0
    assert len(server.engine.aborted) == 2


async def test_an_unexpected_exception_is_a_plain_500_with_a_logged_traceback(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(PagedModel):
        async def preprocess(self, payload: Any, headers: Any = None) -> Any:
            raise KeyError("a secret")

    server = await serve(model_class=Broken)
    response = await server.infer(text_request("Hi"))
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "a secret" in caplog.text
