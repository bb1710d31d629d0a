"""Everything that is refused: by a status and an error body that names the field, and the engine unharmed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.fake_engine import MODEL_INFO, FakeEngine
from tests.predictor.openai.asgi_client import Answer, until

Serve = Callable[..., Any]
USER = {"role": "user", "content": "Hi"}


def error(answer: Answer, status: int) -> dict[str, Any]:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    result: dict[str, Any] = answer.json["error"]
    assert result["message"]
    return result


async def refused(serve: Serve, path: str, body: Any, *, param: str | None, engine: Any = None) -> dict[str, Any]:
    server = serve(engine)
    for streamed in ({}, {"stream": True}):
        full = {**body, **streamed} if isinstance(body, dict) else body
        result = error(await server.client.post(path, full), 400)
        assert result["type"] == "invalid_request_error"
        assert result["param"] == param, result
    assert (await server.client.complete("still alive")).status == 200
    assert server.engine.num_requests == 0
    return result


COMPLETION_CASES: list[tuple[str, dict[str, Any], str]] = [
    ("V1 empty text", {"prompt": ""}, "prompt"),
    ("V1 empty list", {"prompt": []}, "prompt"),
    ("V1 an empty list among others", {"prompt": [[1], []]}, "prompt"),
    ("V2 id past the vocabulary", {"prompt": [5, 999999]}, "prompt"),
    ("V2 negative id", {"prompt": [-1]}, "prompt"),
    ("V3 bias on an id past the vocabulary", {"prompt": "a", "logit_bias": {"999999": 1}}, "logit_bias"),
    ("V3 bias key that is no id", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ("V3 bias out of range", {"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias"),
    ("V5 max_tokens 0", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ("V5 negative", {"prompt": "a", "max_tokens": -1, "echo": True}, "max_tokens"),
    ("V11 best_of < n", {"prompt": "a", "n": 2, "best_of": 1}, "best_of"),
    ("n 0 with best_of", {"prompt": "a", "n": 0, "best_of": 1}, "n"),
    ("V11 best_of 0", {"prompt": "a", "best_of": 0}, "best_of"),
    ("too many", {"prompt": "a", "n": 129}, "n"),
    ("best_of too many", {"prompt": "a", "best_of": 129}, "best_of"),
    ("no prompt", {}, "prompt"),
    ("echo of ids past the vocabulary", {"prompt": [5, 999999], "echo": True}, "prompt"),
    ("echo of too many ids", {"prompt": [5] * 300, "echo": True}, "prompt"),
    ("prompt null", {"prompt": None}, "prompt"),
    ("mixed prompt", {"prompt": ["a", 1]}, "prompt"),
    ("prompt of booleans", {"prompt": [True]}, "prompt[0]"),
    ("prompt of floats", {"prompt": [1.5]}, "prompt[0]"),
    ("prompt object", {"prompt": {"a": 1}}, "prompt"),
    ("suffix", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("echo of more than can be queued", {"prompt": ["a"] * 513, "max_tokens": 0, "echo": True}, "n"),
    ("echo of too many copies", {"prompt": ["a"] * 5, "n": 128, "max_tokens": 0, "echo": True}, "n"),
    ("echo with logprobs", {"prompt": "a", "echo": True, "logprobs": 1}, "logprobs"),
    ("logprobs too many", {"prompt": "a", "logprobs": 21}, "logprobs"),
    ("logprobs true", {"prompt": "a", "logprobs": True}, "logprobs"),
    ("temperature text", {"prompt": "a", "temperature": "hot"}, "temperature"),
    ("temperature negative", {"prompt": "a", "temperature": -0.1}, "temperature"),
    ("top_p 0", {"prompt": "a", "top_p": 0}, "top_p"),
    ("n 0", {"prompt": "a", "n": 0}, "n"),
    ("n float", {"prompt": "a", "n": 1.5}, "n"),
    ("seed beyond 64 bits", {"prompt": "a", "seed": 2**70}, "seed"),
    ("stop empty", {"prompt": "a", "stop": [""]}, "stop"),
    ("stop number", {"prompt": "a", "stop": 5}, "stop"),
    ("stop id past the vocabulary", {"prompt": "a", "stop_token_ids": [999999]}, "stop_token_ids"),
    ("penalty", {"prompt": "a", "presence_penalty": 2.1}, "presence_penalty"),
    ("min_tokens", {"prompt": "a", "min_tokens": 17}, "min_tokens"),
    ("unknown field", {"prompt": "a", "temprature": 1}, "temprature"),
    ("model of the wrong type", {"prompt": "a", "model": 5}, "model"),
    ("unknown stream option", {"prompt": "a", "stream_options": {"usage": True}}, "stream_options.usage"),
]


@pytest.mark.parametrize(("name", "body", "param"), COMPLETION_CASES, ids=[c[0] for c in COMPLETION_CASES])
async def test_completion_is_refused(serve: Serve, name: str, body: dict[str, Any], param: str) -> None:
    result = await refused(serve, "/v1/completions", body, param=param)
    if param in body and name.startswith("V2"):
        assert str(body["prompt"][-1]) in result["message"]


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
CHAT_CASES: list[tuple[str, dict[str, Any], str]] = [
    ("V1 no messages", {"messages": []}, "messages"),
    ("V5 max_tokens 0", {"messages": [USER], "max_tokens": 0}, "max_tokens"),
    ("V5 max_completion_tokens 0", {"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens"),
    ("V9 two user messages", {"messages": [USER, USER]}, "messages"),
    ("messages missing", {}, "messages"),
    ("messages text", {"messages": "Hi"}, "messages"),
    ("two bounds", {"messages": [USER], "max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ("role", {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ("old role", {"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].role"),
    ("no role", {"messages": [{"content": "x"}]}, "messages[0].role"),
    ("no content", {"messages": [{"role": "user"}]}, "messages[0]"),
    ("assistant with nothing", {"messages": [USER, {"role": "assistant"}]}, "messages[1]"),
    ("content number", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("image part", {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
    ("unknown message field", {"messages": [{**USER, "foo": 1}]}, "messages[0].foo"),
    (
        "tool call arguments",
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]},
        "messages[1].tool_calls[0].function.arguments",
    ),
    ("message audio", {"messages": [USER, {"role": "assistant", "audio": {"id": "a"}}]}, "messages[1].audio"),
    ("top_logprobs alone", {"messages": [USER], "top_logprobs": 1}, "top_logprobs"),
    ("top_logprobs too many", {"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("logprobs number", {"messages": [USER], "logprobs": 1}, "logprobs"),
    ("kwargs name", {"messages": [USER], "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ("json mode", {"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
    ("tools", {"messages": [USER], "tools": [{"type": "function"}]}, "tools"),
    ("tool_choice", {"messages": [USER], "tool_choice": "required"}, "tool_choice"),
    ("functions", {"messages": [USER], "functions": [{"name": "f"}]}, "functions"),
    ("audio", {"messages": [USER], "audio": {"voice": "v"}}, "audio"),
    ("modalities", {"messages": [USER], "modalities": ["text", "audio"]}, "modalities"),
    ("store", {"messages": [USER], "store": True}, "store"),
    ("prediction", {"messages": [USER], "prediction": {"type": "content", "content": "x"}}, "prediction"),
    ("unknown field", {"messages": [USER], "guided_json": {}}, "guided_json"),
    ("echo", {"messages": [USER], "echo": True}, "echo"),
]


@pytest.mark.parametrize(("name", "body", "param"), CHAT_CASES, ids=[c[0] for c in CHAT_CASES])
async def test_chat_is_refused(serve: Serve, name: str, body: dict[str, Any], param: str) -> None:
    result = await refused(serve, "/v1/chat/completions", body, param=param)
    if name.startswith("V9"):
        assert "Conversation roles must alternate" in result["message"]


async def test_V11_best_of_cannot_be_streamed(serve: Serve) -> None:
    answer = await serve().client.complete("Hi", n=1, best_of=2, stream=True)
    assert error(answer, 400)["param"] == "best_of"
    assert (await serve().client.complete("Hi", n=2, best_of=2, stream=True)).status == 200


async def test_stream_options_need_a_stream(serve: Serve) -> None:
    answer = await serve().client.complete("Hi", stream_options={"include_usage": True})
    assert error(answer, 400)["param"] == "stream_options"


@pytest.mark.parametrize("prompt_of", [lambda n: "a" * n, lambda n: [97] * n], ids=["text", "ids"])
async def test_V6_a_prompt_at_the_edge_of_the_context(serve: Serve, prompt_of: Callable[[int], Any]) -> None:
    client = serve(FakeEngine()).client
    fits = await client.complete(prompt_of(255))
    assert fits.json["usage"]["completion_tokens"] == 1
    assert fits.json["choices"][0]["finish_reason"] == "length"
    for length in (256, 257, 256 * 300):
        assert error(await client.complete(prompt_of(length)), 400)["code"] == "context_length_exceeded"


@pytest.mark.parametrize("length", [256, 256 * 300])
async def test_V6_a_chat_too_long_names_the_messages(serve: Serve, length: int) -> None:
    result = error(await serve().client.chat("a" * length), 400)
    assert (result["code"], result["param"]) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize("stream", [False, True])
async def test_V7_max_tokens_is_clamped_to_the_context(serve: Serve, stream: bool) -> None:
    engine = FakeEngine(info=replace(MODEL_INFO, max_model_len=16))
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = await serve(engine).client.complete("a" * 10, max_tokens=10, **options)
    whole = answer.chunks[-1] if stream else answer.json
    finish = (answer.chunks[-2] if stream else whole)["choices"][0]["finish_reason"]
    assert (whole["usage"]["completion_tokens"], finish) == (6, "length")


async def test_V8_a_prompt_larger_than_the_pool_is_refused_at_once(serve: Serve) -> None:
    # The context that the engine reports never exceeds its pool: 3 blocks of 16.
    engine = FakeEngine(info=replace(MODEL_INFO, max_model_len=48, num_blocks=3))
    result = await refused(serve, "/v1/completions", {"prompt": "a" * 49}, param="prompt", engine=engine)
    assert result["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"{'prompt': 1}", b'{"model": "\xff"}', b'{"model": NaN}', b"[" * 100_000],
)
async def test_a_body_that_is_no_json_object(serve: Serve, body: bytes) -> None:
    await refused(serve, "/v1/completions", body, param=None)
    await refused(serve, "/v1/chat/completions", body, param=None)


async def test_deep_nesting_where_anything_goes_is_an_error_too(serve: Serve) -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}], "tools": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    error(await serve().client.post("/v1/chat/completions", body), 400)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_bound(serve: Serve, declared: bool) -> None:
    headers = {"content-length": "200"} if declared else {}
    answer = await serve(max_body_size=100).client.post("/v1/completions", {"prompt": "a" * 100}, headers)
    assert error(answer, 413)["code"] == "request_too_large"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_an_unknown_model(serve: Serve, path: str) -> None:
    body = {"model": "gpt-4", "prompt": "Hi"} if path == "/v1/completions" else {"model": "gpt-4", "messages": [USER]}
    result = error(await serve().client.post(path, body), 404)
    assert (result["code"], result["param"]) == ("model_not_found", "model")
    assert "gpt-4" in result["message"]


async def test_M6_a_full_queue_is_429_with_retry_after(serve: Serve) -> None:
    server = serve(FakeEngine(admitting=False), max_waiting_requests=2)
    waiting = server.client.open("/v1/completions", {"prompt": ["a", "b"]})
    await until(lambda: server.engine.num_waiting == 2)
    for stream in (False, True):
        answer = await server.client.chat("Hi", stream=stream)
        result = error(answer, 429)
        assert (result["type"], result["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert int(answer.headers["retry-after"]) >= 1
    server.engine.release()
    assert (await waiting.done()).status == 200


async def test_a_batch_is_taken_whole_or_not_at_all(serve: Serve) -> None:
    server = serve(FakeEngine(admitting=False), max_waiting_requests=3)
    waiting = server.client.open("/v1/completions", {"prompt": "a"})
    await until(lambda: server.engine.num_waiting == 1)
    error(await server.client.complete(["a", "b", "c"]), 429)
    error(await server.client.complete("a", n=3), 429)
    assert error(await server.client.complete("a", n=4), 400)["param"] == "n"
    assert error(await server.client.complete(["a", ""]), 400)["param"] == "prompt"
    assert server.engine.num_waiting == 1
    waiting.disconnect()
    await waiting.done()


@pytest.mark.parametrize(
    ("phase", "code"), [("loading", "engine_loading"), ("draining", "engine_draining"), ("dead", "engine_dead")]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_503_while_no_request_can_be_taken(serve: Serve, phase: str, code: str, stream: bool) -> None:
    server = serve(FakeEngine(phase="loading" if phase == "loading" else "ready"))
    if phase == "draining":
        server.service.start_draining()
    elif phase == "dead":
        server.engine.die("killed")
    for answer in (await server.client.complete("Hi", stream=stream), await server.client.chat("Hi", stream=stream)):
        result = error(answer, 503)
        assert (result["type"], result["code"]) == ("service_unavailable_error", code)
        assert answer.headers["retry-after"] == "1"


async def test_a_fault_of_our_own_is_a_500_that_tells_nothing(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(server.service, "submit_many", fail)
    result = error(await server.client.complete("Hi"), 500)
    assert result["type"] == "server_error"
    assert "secret" not in result["message"]
    assert "secret detail" in caplog.text
