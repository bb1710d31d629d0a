"""Streams of both endpoints: cases S1 to S11, T and what a client sees of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.fake_engine import EOS, FakeEngine, text_script
from tests.predictor.openai.asgi_client import Answer, Client, until

Serve = Callable[..., Any]
KINDS = ["completions", "chat"]


async def ask(client: Client, kind: str, **fields: Any) -> Answer:
    return await (client.complete("Hi", **fields) if kind == "completions" else client.chat("Hi", **fields))


def piece(kind: str, choice: dict[str, Any]) -> str:
    return choice["text"] if kind == "completions" else choice["delta"].get("content", "")


def texts(kind: str, chunks: list[Any]) -> dict[int, str]:
    result: dict[int, str] = defaultdict(str)
    for chunk in chunks:
        for choice in chunk["choices"]:
            result[choice["index"]] += piece(kind, choice)
    return dict(result)


@pytest.mark.parametrize("kind", KINDS)
async def test_S1_finish_reason_is_null_on_every_chunk_but_the_last(serve: Serve, kind: str) -> None:
    client = serve(FakeEngine(text_script("abc", eos=False))).client
    answer = await ask(client, kind, stream=True, max_tokens=3)
    reasons = [choice["finish_reason"] for chunk in answer.chunks for choice in chunk["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert texts(kind, answer.chunks) == {0: "abc"}
    assert len(answer.chunks) == (3 if kind == "completions" else 4)  # chat opens with the role


@pytest.mark.parametrize("kind", KINDS)
async def test_S2_one_finish_reason_per_index(serve: Serve, kind: str) -> None:
    engine = FakeEngine(lambda request, index: [*(b"xyz"[: index + 1]), EOS])
    answer = await ask(serve(engine).client, kind, stream=True, n=2)
    reasons = defaultdict(list)
    for chunk in answer.chunks:
        for choice in chunk["choices"]:
            reasons[choice["index"]].append(choice["finish_reason"])
    assert {i: [r for r in rs if r] for i, rs in reasons.items()} == {0: ["stop"], 1: ["stop"]}
    assert all(rs[-1] == "stop" for rs in reasons.values())
    assert texts(kind, answer.chunks) == {0: "x", 1: "xy"}


@pytest.mark.parametrize("kind", KINDS)
async def test_S4_usage_comes_in_a_chunk_of_its_own_before_done(serve: Serve, kind: str) -> None:
    client = serve(FakeEngine(text_script("abc"))).client
    answer = await ask(client, kind, stream=True, stream_options={"include_usage": True})
    *others, last = answer.chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4  # three bytes and EOS
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 4
    assert all(chunk["usage"] is None for chunk in others)
    assert others[-1]["choices"][0]["finish_reason"] == "stop"
    assert answer.events[-1] == "[DONE]"


@pytest.mark.parametrize("kind", KINDS)
async def test_no_usage_field_unless_asked_for(serve: Serve, kind: str) -> None:
    answer = await ask(serve().client, kind, stream=True)
    assert all("usage" not in chunk and chunk["choices"] for chunk in answer.chunks)


async def test_continuous_usage_counts_up(serve: Serve) -> None:
    client = serve(FakeEngine(text_script("abc"))).client
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await client.complete("Hi", stream=True, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in answer.chunks] == [1, 2, 3, 4, 4]


@pytest.mark.parametrize("kind", KINDS)
async def test_S5_the_last_event_is_done(serve: Serve, kind: str) -> None:
    answer = await ask(serve().client, kind, stream=True)
    assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")
    assert answer.body.count(b"[DONE]") == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_S6_eos_is_stop(serve: Serve, kind: str, stream: bool) -> None:
    answer = await ask(serve(FakeEngine(text_script("ab"))).client, kind, stream=stream)
    choice = (answer.chunks[-1] if stream else answer.json)["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


@pytest.mark.parametrize("kind", KINDS)
async def test_S7_an_error_within_a_stream_is_an_event_and_no_done(serve: Serve, kind: str) -> None:
    answer = await ask(serve(FakeEngine(fail_after=2)).client, kind, stream=True)
    assert answer.status == 200
    *chunks, last = [json.loads(event) for event in answer.events]
    assert texts(kind, chunks) == {0: "He"}
    assert last["error"]["code"] == "engine_dead"
    assert last["error"]["message"] == "the engine failed on purpose"
    assert b"[DONE]" not in answer.body


@pytest.mark.parametrize("kind", KINDS)
async def test_S7_an_error_before_the_first_token_is_a_status(serve: Serve, kind: str) -> None:
    server = serve(FakeEngine(admitting=False))
    path = "/v1/completions" if kind == "completions" else "/v1/chat/completions"
    prompt = {"prompt": "Hi"} if kind == "completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    exchange = server.client.open(path, {**prompt, "stream": True})
    await until(lambda: server.engine.num_waiting == 1)
    server.engine.die("killed")
    answer = await exchange.done()
    assert answer.status == 503
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["error"]["message"] == "killed"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_S9_without_eos_the_answer_ends_by_length(serve: Serve, kind: str, stream: bool) -> None:
    client = serve(FakeEngine(text_script("a", eos=False))).client
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = await ask(client, kind, max_tokens=8, **options)
    if stream:
        *chunks, usage = answer.chunks
        assert texts(kind, chunks) == {0: "aaaaaaaa"}
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert usage["usage"]["completion_tokens"] == 8
    else:
        choice = answer.json["choices"][0]
        assert choice["finish_reason"] == "length"
        assert (choice["text"] if kind == "completions" else choice["message"]["content"]) == "aaaaaaaa"
        assert answer.json["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("stream", [False, True])
async def test_S11_indices_are_prompt_major(serve: Serve, stream: bool) -> None:
    engine = FakeEngine(lambda request, index: [*request.prompt_token_ids, ord("0") + index, EOS])
    answer = await serve(engine).client.complete(["a", "b"], n=2, stream=stream)
    expected = {0: "a0", 1: "a1", 2: "b0", 3: "b1"}
    if stream:
        assert texts("completions", answer.chunks) == expected
    else:
        assert [c["index"] for c in answer.json["choices"]] == [0, 1, 2, 3]
        assert {c["index"]: c["text"] for c in answer.json["choices"]} == expected
        assert answer.json["usage"] == {
            "prompt_tokens": 2,
            "completion_tokens": 12,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


@pytest.mark.parametrize("kind", KINDS)
async def test_headers_of_a_stream(serve: Serve, kind: str) -> None:
    headers = (await ask(serve().client, kind, stream=True)).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers


async def test_chat_opens_each_index_with_the_role(serve: Serve) -> None:
    chunks = (await serve().client.chat("Hi", stream=True, n=2)).chunks
    opening = [c["choices"][0] for c in chunks[:2]]
    assert [(c["index"], c["delta"]) for c in opening] == [
        (0, {"role": "assistant", "content": ""}),
        (1, {"role": "assistant", "content": ""}),
    ]
    later = [c["choices"][0]["delta"] for c in chunks[2:]]
    assert all("role" not in delta for delta in later)
    assert later[-1] == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_every_chunk_has_the_same_envelope(serve: Serve, kind: str) -> None:
    chunks = (await ask(serve().client, kind, stream=True)).chunks
    whole = (await ask(serve().client, kind)).json
    envelopes = {(c["id"], c["object"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}
    assert len(envelopes) == 1
    ((id_, kind_of_object, created, model, fingerprint),) = envelopes
    assert id_.startswith("cmpl-" if kind == "completions" else "chatcmpl-")
    assert kind_of_object == ("text_completion" if kind == "completions" else "chat.completion.chunk")
    assert isinstance(created, int)
    assert model == "model"
    assert fingerprint == whole["system_fingerprint"]
    assert fingerprint.startswith("fp_")


@pytest.mark.parametrize("kind", KINDS)
async def test_T1_a_stop_string_over_several_tokens_lets_nothing_out(serve: Serve, kind: str) -> None:
    answer = await ask(serve(FakeEngine(text_script("DEFGHIJ"))).client, kind, stream=True, stop="DEFGHIJ")
    assert texts(kind, answer.chunks) in ({0: ""}, {})
    last = answer.chunks[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "DEFGHIJ")


@pytest.mark.parametrize("kind", KINDS)
async def test_T2_the_same_cut_streamed_or_not(serve: Serve, kind: str) -> None:
    engine = FakeEngine(text_script("alpha beta gamma delta"))
    client = serve(engine).client
    whole = (await ask(client, kind, stop=["beta gamma"])).json["choices"][0]
    streamed = (await ask(client, kind, stop=["beta gamma"], stream=True)).chunks
    text = whole["text"] if kind == "completions" else whole["message"]["content"]
    assert text == "alpha "
    assert texts(kind, streamed) == {0: "alpha "}
    assert whole["finish_reason"] == streamed[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("kind", KINDS)
async def test_T3_text_flows_with_each_token_and_no_chunk_is_empty(serve: Serve, kind: str) -> None:
    engine = FakeEngine(text_script("ordinary"))
    chunks = (await ask(serve(engine).client, kind, stream=True, stop="ZZZZZZZZ")).chunks
    if kind == "chat":
        chunks = chunks[1:]
    *middle, last = [c["choices"][0] for c in chunks]
    assert [piece(kind, c) for c in middle] == list("ordinary")
    assert (piece(kind, last), last["finish_reason"]) == ("", "stop")


async def test_T4_a_long_stop_string_is_cut_exactly(serve: Serve) -> None:
    stop = "0123456789abcdefghijklmnopqrst"
    engine = FakeEngine(text_script(f"before{stop}after"))
    answer = await serve(engine).client.complete("Hi", stream=True, stop=stop, max_tokens=60)
    assert texts("completions", answer.chunks) == {0: "before"}


@pytest.mark.parametrize("stream", [False, True])
async def test_T7_ignore_eos_goes_on_to_the_length(serve: Serve, stream: bool) -> None:
    engine = FakeEngine(lambda request, index: [EOS])
    answer = await serve(engine).client.complete("Hi", ignore_eos=True, max_tokens=8, stream=stream)
    choice = answer.chunks[-1]["choices"][0] if stream else answer.json["choices"][0]
    assert choice["finish_reason"] == "length"
    if not stream:
        assert answer.json["usage"]["completion_tokens"] == 8


async def test_T9_a_special_stop_token_leaves_the_text_alone(serve: Serve) -> None:
    engine = FakeEngine(lambda request, index: [*b"text", 258, *b"more"])
    answer = await serve(engine).client.complete("Hi", stop_token_ids=[258])
    choice = answer.json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("text", "stop", 258)


@pytest.mark.parametrize(("include", "expected"), [(False, "Hello"), (True, "Hello\nUser")])
async def test_T10_the_stop_string_is_returned_only_if_asked_for(serve: Serve, include: bool, expected: str) -> None:
    engine = FakeEngine(text_script("Hello\nUser: more"))
    answer = await serve(engine).client.chat("Hi", stop=["\nUser"], include_stop_str_in_output=include)
    assert answer.json["choices"][0]["message"]["content"] == expected


async def test_U1_a_character_of_two_tokens_comes_whole(serve: Serve) -> None:
    engine = FakeEngine(lambda request, index: [0xC4, 0x8F, EOS])
    answer = await serve(engine).client.complete("Hi", stream=True)
    assert [c["choices"][0]["text"] for c in answer.chunks] == ["ď", ""]


async def test_ready_deltas_of_several_sequences_go_out_in_one_write(serve: Serve) -> None:
    answer = await serve(FakeEngine(text_script("abcd"))).client.complete("Hi", stream=True, n=4)
    assert len(answer.chunks) == 20
    assert len(answer.writes) <= 6


async def test_a_reader_that_stops_holds_the_stream_back(serve: Serve) -> None:
    server = serve(FakeEngine(text_script("x" * 100, eos=False)))
    exchange = server.client.open("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 100})
    exchange.reading.clear()
    await until(lambda: exchange.num_writes_begun == 1)
    await until(lambda: server.engine.num_requests == 0)  # the engine is done, and nothing was written
    assert exchange.num_writes_begun == 1
    exchange.reading.set()
    answer = await exchange.done()
    assert texts("completions", answer.chunks) == {0: "x" * 100}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_goes_away_aborts_the_stream(serve: Serve, kind: str, n: int) -> None:
    server = serve(FakeEngine(pause_after=2))
    path = "/v1/completions" if kind == "completions" else "/v1/chat/completions"
    prompt = {"prompt": "Hi"} if kind == "completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    exchange = server.client.open(path, {**prompt, "stream": True, "n": n})
    await exchange.wait_for(lambda: b'"H"' in exchange.answer.body)
    assert server.engine.num_requests == 1
    exchange.disconnect()
    await exchange.done()
    assert server.engine.num_requests == 0
    assert len(server.engine.aborted) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_while_waiting_aborts_every_prompt(serve: Serve, stream: bool) -> None:
    server = serve(FakeEngine(admitting=False))
    exchange = server.client.open("/v1/completions", {"prompt": ["a", "b"], "stream": stream})
    await until(lambda: server.engine.num_waiting == 2)
    exchange.disconnect()
    answer = await exchange.done()
    assert server.engine.num_requests == 0
    assert len(server.engine.aborted) == 2
    assert answer.status == 499


async def test_one_failing_prompt_ends_the_whole_stream(serve: Serve) -> None:
    server = serve(FakeEngine(fail_after=2))
    answer = await server.client.complete(["a", "b", "c"], stream=True)
    assert json.loads(answer.events[-1])["error"]["code"] == "engine_dead"
    assert server.engine.num_requests == 0


@pytest.mark.parametrize("n", [1, 2])
async def test_a_reader_too_far_behind_gets_an_error_event(serve: Serve, n: int) -> None:
    server = serve(FakeEngine(text_script("x" * 100, eos=False), max_stream_buffer=5))
    body = {"prompt": "Hi", "max_tokens": 200, "n": n, "stream": True}
    exchange = server.client.open("/v1/completions", body)
    exchange.reading.clear()
    await until(lambda: len(server.engine.aborted) == 1)
    exchange.reading.set()
    answer = await exchange.done()
    assert "more than 5 tokens waited" in json.loads(answer.events[-1])["error"]["message"]
    assert server.engine.num_requests == 0


async def test_unstreamed_answers_know_no_slow_reader(serve: Serve) -> None:
    server = serve(FakeEngine(text_script("x" * 100, eos=False), max_stream_buffer=1))
    answer = await server.client.post("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 100, "n": 2})
    assert [choice["text"] for choice in answer.json["choices"]] == ["x" * 100] * 6
