"""What is known of an HTTP request at its end, and its id on every answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from predictor.model import PagedModel
from tests.fake_engine import FakeEngine
from tests.predictor.edge_app import TRACE_ID, EdgeApp, edge_app, traceparent
from tests.predictor.oip.conftest import until
from tests.predictor.openai.asgi_client import Answer, Exchange

INFER = "/v2/models/model/infer"
BODY = {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]}]}


async def ask(
    server: EdgeApp, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    return await Exchange(server.app, method, path, body, dict(headers or {})).done()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v2/health/ready", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/nothing/here", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v2", 405),
        ("POST", "/v1/completions", 400),
        ("POST", INFER, 400),
        ("POST", "/tokenize", 400),
    ],
)
async def test_every_answer_has_the_callers_id(method: str, path: str, status: int) -> None:
    async with edge_app() as server:
        answer = await ask(server, method, path, b"{", {"x-request-id": "mine/1"})
        assert (answer.status, answer.headers["x-request-id"]) == (status, "mine/1")


async def test_an_answer_without_one_given_has_a_new_one() -> None:
    async with edge_app() as server:
        answers = [await ask(server, "GET", "/v2") for _ in range(2)]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)


@pytest.mark.parametrize("given", ["a" * 129, "with space", "line\nbreak", 'quo"te', "\x7f", "ü"])
async def test_an_id_that_is_not_sane_is_replaced(given: str) -> None:
    async with edge_app() as server:
        answer = await ask(server, "GET", "/v2", headers={"x-request-id": given})
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


async def test_a_stream_has_the_id_and_the_answers_own_id_holds_it() -> None:
    async with edge_app() as server:
        body = {"model": "model", "prompt": "Hi", "stream": True}
        answer = await server.client.post("/v1/completions", body, {"x-request-id": "s1"})
        assert answer.headers["x-request-id"] == "s1"
        assert {chunk["id"] for chunk in answer.chunks} == {"cmpl-s1"}
        assert "s1" in server.ended.last.records[0].request_id


class Failing(PagedModel):
    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        raise ZeroDivisionError


async def test_an_unexpected_error_has_the_id_and_is_noted() -> None:
    async with edge_app(model_class=Failing) as server:
        exchange = server.client.open("/v1/models/model:predict", {"instances": ["a"]}, {"x-request-id": "e1"})
        with pytest.raises(ZeroDivisionError):
            await exchange.task
        assert (exchange.answer.status, exchange.answer.headers["x-request-id"]) == (500, "e1")
        request = server.ended.last
        assert (request.status, request.error_type) == (500, "ZeroDivisionError")


async def test_what_is_known_of_a_completion() -> None:
    async with edge_app() as server:
        headers = {"traceparent": traceparent(), "tracestate": "a=1"}
        body = {"model": "org/alias", "prompt": ["Hi", "Yo"], "max_tokens": 3, "temperature": 0.5}
        await server.client.post("/v1/completions", body, headers)
        (request,) = server.ended.requests
    assert (request.protocol, request.method, request.route) == ("http", "POST", "/v1/completions")
    assert (request.status, request.model, request.error_type, request.is_aborted) == (200, "org/alias", None, False)
    assert request.trace_id == TRACE_ID
    assert request.trace_headers == {"traceparent": traceparent(), "tracestate": "a=1"}
    assert request.params is not None
    assert (request.params.max_tokens, request.params.temperature, request.num_prompts) == (3, 0.5, 2)
    assert [(r.num_prompt_tokens, r.num_output_tokens, r.finish_reason) for r in request.records] == [
        (2, 3, "length")
    ] * 2
    assert request.start_time <= request.records[0].arrival_time <= request.end_time
    assert request.prompt is None


@pytest.mark.parametrize(
    ("path", "route", "model"),
    [
        (INFER, "/v2/models/{model_name}/infer", "model"),
        ("/v2/models/other/infer", "/v2/models/{model_name}/infer", "other"),
        ("/v1/models/org/alias:predict", "/v1/models/{name:path}:predict", "org/alias"),
        ("/openai/v1/completions", "/openai/v1/completions", None),
        (f"/v1/models/{'m' * 30_000}:predict", "/v1/models/{name:path}:predict", "m" * 97 + "..."),
        ("/nothing", None, None),
    ],
)
async def test_the_route_is_a_template(path: str, route: str | None, model: str | None) -> None:
    async with edge_app() as server:
        await ask(server, "POST", path, b"{}")
        assert (server.ended.last.route, server.ended.last.model) == (route, model)


@pytest.mark.parametrize(
    "path",
    ["/", "/health", "/metrics", "/v2/health/live", "/v2/models/model/ready", "/v2/models/model/versions/1/ready"],
)
async def test_probes_are_not_told(path: str) -> None:
    async with edge_app() as server:
        assert (await ask(server, "GET", path)).status == 200
        assert server.ended.requests == []


async def test_a_refused_request_is_told_with_its_error() -> None:
    async with edge_app(FakeEngine(admitting=False), max_waiting_requests=1) as server:
        waiting = server.client.open(INFER, BODY)
        await until(lambda: server.engine.num_requests == 1)
        assert (await server.client.post(INFER, BODY)).status == 429
        request = server.ended.last
        assert (request.status, request.error_type, request.records) == (429, "OverloadedError", [])
        waiting.disconnect()
        await waiting.done()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_is_told(stream: bool) -> None:
    engine = FakeEngine(pause_after=2)
    async with edge_app(engine) as server:
        exchange = server.client.open("/v1/completions", {"model": "model", "prompt": "Hi", "stream": stream})
        if stream:
            await exchange.wait_for(lambda: exchange.answer.writes)
        else:
            await until(lambda: server.engine.num_requests == 1)
        exchange.disconnect()
        await exchange.done()
        (request,) = server.ended.requests
    assert (request.is_aborted, request.error_type) == (True, "client_disconnected")
    assert request.status == (200 if stream else 499)
    assert [record.finish_reason for record in request.records] == ["abort"]


async def test_an_error_within_a_stream_is_told() -> None:
    async with edge_app(FakeEngine(fail_after=2)) as server:
        await server.client.post("/v1/completions", {"model": "model", "prompt": "Hi", "stream": True})
        (request,) = server.ended.requests
    assert (request.status, request.error_type, request.is_aborted) == (200, "EngineDeadError", False)
    assert [(record.finish_reason, record.error) for record in request.records] == [("error", "EngineDeadError")]


async def test_a_request_without_a_key_is_told() -> None:
    async with edge_app(key="k" * 20) as server:
        answer = await ask(server, "POST", INFER, b"{}", {"x-request-id": "g1"})
        assert (answer.status, answer.headers["x-request-id"]) == (401, "g1")
        assert (server.ended.last.status, server.ended.last.error_type) == (401, "401")


async def test_a_listener_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def on_request_ended(self, request: Any) -> None:
            raise RuntimeError("on purpose")

        def close(self) -> None:
            raise AssertionError

    async with edge_app(listeners=[Broken()]) as server:
        assert (await server.client.complete()).status == 200
        assert len(server.ended.requests) == 1
    assert "Broken failed" in caplog.text
