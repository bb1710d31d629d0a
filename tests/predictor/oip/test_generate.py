"""`generate` and `generate_stream`, on the scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from engine.errors import RequestAbortedError
from predictor.oip.generate import decode_generate
from tests.fake_engine import FakeEngine, text_script
from tests.predictor.oip.conftest import ABORT_SECONDS, Server, until

GENERATE = "/v2/models/model/generate"
STREAM = "/v2/models/model/generate_stream"


async def post(server: Server, path: str, text: Any = "Hi", **parameters: Any) -> httpx.Response:
    body = {"text_input": text, "parameters": parameters} if parameters else {"text_input": text}
    return await server.http.post(path, json=body)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = response.text.split("\n\n")
    assert rest == ""
    assert all(block.startswith("data: ") for block in blocks)
    return [orjson.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize("path", [GENERATE, "/v2/models/model/versions/1/generate"])
async def test_generate(server: Server, path: str) -> None:
    response = await post(server, path)
    assert response.status_code == 200
    assert response.json() == {"text_output": "Hello, world!", "model_name": "model", "model_version": "1"}


@pytest.mark.parametrize("path", [STREAM, "/v2/models/model/versions/1/generate_stream"])
async def test_generate_stream(server: Server, path: str) -> None:
    events = events_of(await post(server, path))
    assert "".join(event["text_output"] for event in events) == "Hello, world!"
    assert {(event["model_name"], event["model_version"]) for event in events} == {("model", "1")}
    assert not any("details" in event for event in events)


async def test_default_max_tokens_is_20(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("x" * 100)))
    assert (await post(server, GENERATE)).json()["text_output"] == "x" * 20
    assert "".join(event["text_output"] for event in events_of(await post(server, STREAM))) == "x" * 20


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "eos_token"),
        ({"max_tokens": 3}, "length"),
        ({"stop": ["world"]}, "stop_sequence"),
        ({"stop_token_ids": [ord("w")]}, "stop_sequence"),
    ],
)
async def test_details_tell_the_finish_reason(server: Server, parameters: dict[str, Any], reason: str) -> None:
    answer = (await post(server, GENERATE, details=True, **parameters)).json()
    assert answer["details"]["finish_reason"] == reason
    events = events_of(await post(server, STREAM, details=True, **parameters))
    assert [event["details"]["finish_reason"] for event in events] == [None] * (len(events) - 1) + [reason]
    assert "".join(event["text_output"] for event in events) == answer["text_output"]


async def test_details_list_the_tokens(server: Server) -> None:
    answer = (await post(server, GENERATE, details=True)).json()
    tokens = answer["details"]["logprobs"]
    assert [token["id"] for token in tokens] == [*b"Hello, world!", 256]
    assert tokens[0] == {"id": 72, "text": "H", "logprob": -0.5, "special": False}
    assert tokens[-1]["special"] is True
    events = events_of(await post(server, STREAM, details=True))
    assert [event["details"]["token"] for event in events] == tokens
    answer = (await post(server, GENERATE, details=True, logprobs=1, max_tokens=1)).json()
    (token,) = answer["details"]["logprobs"]
    assert token["top"] == [{"id": 72, "text": "H", "logprob": -0.5, "special": False}]


async def test_top_p_0_is_the_most_likely_token_alone(server: Server) -> None:
    assert (await post(server, GENERATE, top_p=0)).status_code == 200
    assert 0 < decode_generate(b'{"text_input": "a", "parameters": {"top_p": 0}}').sampling.top_p < 1e-6
    assert (await post(server, GENERATE, top_p=False)).status_code == 422


async def test_every_sampling_parameter_is_taken(server: Server) -> None:
    response = await post(server, GENERATE, temperature=0.5, top_p=0.9, top_k=5, seed=1, stop=["x"], timeout=10**9)
    assert response.status_code == 200


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"text_input": 5}',
        b'{"text_input": ["a"]}',
        b'{"text_input": "a", "stream": true}',
        b'{"text_input": "a", "parameters": []}',
        b'{"text_input": "a", "parameters": {"tempo": 1}}',
        b'{"text_input": "a", "parameters": {"binary_data_output": true}}',
        b'{"text_input": "a", "parameters": {"details": "yes"}}',
        b'{"text_input": "a", "parameters": {"max_tokens": 0}}',
        b'{"text_input": "a", "parameters": {"temperature": -1}}',
        b'{"text_input": "a", "parameters": {"n": 2}}',
        b'{"text_input": ""}',
        b'{"text_input": "' + b"x" * 256 + b'"}',
    ],
)
async def test_V1_V5_V6_a_bad_body_is_422(server: Server, path: str, body: bytes) -> None:
    response = await server.http.post(path, content=body)
    assert (response.status_code, list(response.json())) == (422, ["error"])
    assert server.engine.num_requests == 0


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
async def test_O13_unknown_models_and_versions_are_404(server: Server, verb: str) -> None:
    for path in (f"/v2/models/other/{verb}", f"/v2/models/model/versions/2/{verb}"):
        response = await post(server, path)
        assert (response.status_code, list(response.json())) == (404, ["error"])


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_M6_a_full_queue_is_429_and_a_loading_model_503(serve: Callable[..., Any], path: str) -> None:
    server = await serve(FakeEngine(admitting=False), max_waiting_requests=1)
    first = asyncio.create_task(post(server, path))
    await until(lambda: server.engine.num_waiting > 0)
    response = await post(server, path)
    assert (response.status_code, list(response.json())) == (429, ["error"])
    assert int(response.headers["retry-after"]) >= 1
    server.engine.release()
    assert (await first).status_code == 200
    loading = await serve(FakeEngine(phase="loading"))
    assert (await post(loading, path)).status_code == 503


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_a_request_that_fails_before_its_first_token_is_424(serve: Callable[..., Any], path: str) -> None:
    server = await serve(FakeEngine(admitting=False))
    call = asyncio.create_task(post(server, path))
    await until(lambda: server.engine.num_requests == 1)
    server.engine.abort_all(RequestAbortedError("the drain timeout has passed"))
    response = await call
    assert (response.status_code, response.json()) == (424, {"error": "the drain timeout has passed"})


async def test_S7_a_stream_that_fails_ends_with_an_error_event(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(fail_after=3))
    events = events_of(await post(server, STREAM))
    assert "".join(event.get("text_output", "") for event in events) == "Hel"
    assert list(events[-1]) == ["error"]


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_the_timeout_is_a_deadline(serve: Callable[..., Any], path: str) -> None:
    server = await serve(FakeEngine(admitting=False))
    assert (await post(server, path, timeout=20_000)).status_code == 504
    assert server.engine.num_requests == 0


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize("tokens_before", [0, 2])
async def test_a_caller_that_goes_away_aborts_its_request(
    serve: Callable[..., Any], path: str, tokens_before: int
) -> None:
    engine = FakeEngine(text_script("x" * 1000), pause_after=tokens_before or None, admitting=tokens_before > 0)
    server = await serve(engine)
    call = asyncio.create_task(post(server, path, max_tokens=50))
    await until(lambda: engine.num_requests == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until(lambda: engine.num_requests == 0, ABORT_SECONDS)
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_null_logprobs_are_absent_ones(server: Server, path: str) -> None:
    response = await post(server, path, details=True, logprobs=None)
    if path == GENERATE:
        assert len(response.json()["details"]["logprobs"]) == 14
    else:
        assert all(event["details"]["token"]["logprob"] == -0.5 for event in events_of(response))


@pytest.mark.parametrize("top_p", [0, 0.0, "0", "0.0", "-0"])
def test_a_top_p_of_0_is_the_most_likely_token(top_p: Any) -> None:
    body = orjson.dumps({"text_input": "Hi", "parameters": {"top_p": top_p}})
    assert decode_generate(body).sampling.top_p == 1e-9
