"""`/v1/completions` not streamed: prompts, echo, best_of, log probabilities."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.messages import RawLogprobs
from engine.outputs import CompletionOutput
from predictor.openai.completions import best
from predictor.request_context import request_id_of
from tests.fake_engine import BOS, EOS, FakeEngine, FakeTokenizer, text_script
from tests.predictor.openai.asgi_client import until

Serve = Callable[..., Any]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
    ],
)
async def test_every_form_of_prompt(serve: Serve, prompt: Any, texts: list[str]) -> None:
    answer = await serve(FakeEngine(lambda request, index: [*request.prompt_token_ids, EOS])).client.complete(prompt)
    assert [c["text"] for c in answer.json["choices"]] == texts
    assert answer.json["usage"]["prompt_tokens"] == sum(map(len, texts))


async def test_the_shape_of_an_answer(serve: Serve) -> None:
    answer = await serve(FakeEngine(text_script("abc"))).client.complete("Hi")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    assert re.fullmatch(r"cmpl-[0-9a-f]{32}", body.pop("id"))
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "object": "text_completion",
        "model": "model",
        "choices": [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_V5_max_tokens_is_16_unless_given_and_null_is_the_rest_of_the_context(serve: Serve) -> None:
    client = serve(FakeEngine(text_script("a", eos=False))).client
    assert (await client.complete("Hi")).json["usage"]["completion_tokens"] == 16
    assert (await client.complete("Hi", max_tokens=None)).json["usage"]["completion_tokens"] == 256 - 2


@pytest.mark.parametrize("prompt", ["Hi", [72, 105]])
@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_before_the_text(serve: Serve, prompt: Any, stream: bool) -> None:
    client = serve(FakeEngine(text_script(" there"))).client
    answer = await client.complete(prompt, echo=True, n=2, stream=stream)
    if stream:
        texts = [
            "".join(c["choices"][0]["text"] for c in answer.chunks if c["choices"][0]["index"] == i) for i in (0, 1)
        ]
    else:
        texts = [c["text"] for c in answer.json["choices"]]
    assert texts == ["Hi there", "Hi there"]


@pytest.mark.parametrize("stream", [False, True])
async def test_V5_echo_with_max_tokens_0_returns_the_prompt(serve: Serve, stream: bool) -> None:
    server = serve()
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = await server.client.complete(["ab", "c"], echo=True, max_tokens=0, **options)
    if stream:
        *chunks, last = answer.chunks
        choices = [c["choices"][0] for c in chunks]
        assert [(c["index"], c["text"], c["finish_reason"]) for c in choices] == [
            (0, "ab", None),
            (0, "", "length"),
            (1, "c", None),
            (1, "", "length"),
        ]
        usage = last["usage"]
    else:
        choices = answer.json["choices"]
        assert [(c["index"], c["text"], c["finish_reason"]) for c in choices] == [
            (0, "ab", "length"),
            (1, "c", "length"),
        ]
        usage = answer.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 0)
    assert server.engine.num_requests == 0


async def test_V11_copies_at_temperature_0_are_equal(serve: Serve) -> None:
    answer = await serve().client.complete("Hi", n=3, temperature=0)
    assert [c["text"] for c in answer.json["choices"]] == ["Hello, world!"] * 3


class GradedEngine(FakeEngine):
    """Sequence i gets the log probability −|i − 2| for each of its tokens, and says its number."""

    def __init__(self) -> None:
        super().__init__(lambda request, index: [ord("0") + index, EOS])

    def _token(self, request: Any, index: int, script: list[int], position: int) -> Any:
        output = super()._token(request, index, script, position)
        if request.params.logprobs is None:
            return output
        return replace(output, logprobs=(RawLogprobs(output.token_ids[0], -abs(index - 2.0)),))


async def test_V11_best_of_returns_the_likeliest_best_first(serve: Serve) -> None:
    answer = await serve(GradedEngine()).client.complete(["a", "b"], n=2, best_of=4)
    choices = answer.json["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2, 3]
    assert [c["text"] for c in choices] == ["2", "1", "2", "1"]
    assert all(c["logprobs"] is None for c in choices)
    assert answer.json["usage"]["completion_tokens"] == 2 * 4 * 2  # what was generated, not what is returned


def test_best_ranks_by_log_probability_a_token() -> None:
    long = CompletionOutput(0, token_ids=[1] * 10, cumulative_logprob=-5.0)
    short = CompletionOutput(1, token_ids=[1], cumulative_logprob=-1.0)
    assert best([short, long], 1) == [long]
    assert best([short, long], 2) == [short, long]


async def test_L2_logprobs_of_a_completion(serve: Serve) -> None:
    answer = await serve(FakeEngine(text_script("ab"))).client.complete("Hi", logprobs=1, max_tokens=2)
    assert answer.json["choices"][0]["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"a": -0.5}, {"b": -0.5}],
        "text_offset": [0, 1],
    }


async def test_L2_logprobs_0_gives_the_sampled_tokens(serve: Serve) -> None:
    answer = await serve(FakeEngine(text_script("ab"))).client.complete("Hi", logprobs=0, max_tokens=1)
    assert answer.json["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5}]


async def test_logprobs_streamed_add_up_to_the_whole(serve: Serve) -> None:
    client = serve(FakeEngine(text_script("añb"))).client
    whole = (await client.complete("Hi", logprobs=2)).json["choices"][0]["logprobs"]
    joined: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in (await client.complete("Hi", logprobs=2, stream=True)).chunks:
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == whole
    assert len(whole["tokens"]) >= 4


async def test_L5_a_stop_string_cuts_the_arrays_with_the_text(serve: Serve) -> None:
    answer = await serve(FakeEngine(text_script("alpha STOP more"))).client.complete("Hi", logprobs=0, stop="STOP")
    choice = answer.json["choices"][0]
    assert choice["text"] == "alpha "
    assert "".join(choice["logprobs"]["tokens"]) == "alpha "
    assert {len(values) for values in choice["logprobs"].values()} == {6}


async def test_cached_tokens_are_reported(serve: Serve) -> None:
    class CachedEngine(FakeEngine):
        def submit(self, request: Any) -> Any:
            stream = super().submit(request)
            stream.num_cached_tokens = 16
            return stream

    answer = await serve(CachedEngine()).client.complete(["a" * 20, "b" * 20])
    assert answer.json["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


async def test_special_tokens_can_be_left_out(serve: Serve) -> None:
    class WithBos(FakeTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [BOS] * add_special_tokens + super().encode(text)

    client = serve(FakeEngine(tokenizer=WithBos())).client
    assert (await client.complete("Hi")).json["usage"]["prompt_tokens"] == 3
    assert (await client.complete("Hi", add_special_tokens=False)).json["usage"]["prompt_tokens"] == 2
    assert (await client.complete("", add_special_tokens=False)).status == 400


@pytest.mark.parametrize("path", ["/v1/completions", "/openai/v1/completions"])
@pytest.mark.parametrize("model", ["model", "org/alias", None])
async def test_names_and_paths(serve: Serve, path: str, model: str | None) -> None:
    body = {"prompt": "Hi"} if model is None else {"prompt": "Hi", "model": model}
    answer = await serve().client.post(path, body)
    assert answer.json["model"] == (model or "model")


@pytest.mark.parametrize("given", ["a" * 129, "with space", "line\nbreak", 'quo"te', "ü", ""])
def test_an_odd_request_id_is_replaced(given: str) -> None:
    assert re.fullmatch("[0-9a-f]{32}", request_id_of(given))


async def test_the_callers_request_id_is_used_even_twice_at_once(serve: Serve) -> None:
    server = serve(FakeEngine(admitting=False))
    body, headers = {"prompt": ["a", "b"]}, {"x-request-id": "trace-42"}
    exchanges = [server.client.open("/v1/completions", body, headers) for _ in range(2)]
    await until(lambda: server.engine.num_waiting == 4)
    server.engine.release()
    for exchange in exchanges:
        answer = await exchange.done()
        assert answer.json["id"] == "cmpl-trace-42"
        assert answer.headers["x-request-id"] == "trace-42"
