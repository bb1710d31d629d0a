"""`/v1/chat/completions` not streamed: messages, templates, log probabilities."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.fake_engine import EOS, FakeEngine, FakeTokenizer, text_script

Serve = Callable[..., Any]
USER = {"role": "user", "content": "Hi"}


class Recorder(FakeTokenizer):
    """Keeps what the template was given."""

    def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        self.messages, self.kwargs = messages, kwargs
        return super().apply_chat_template(messages, **kwargs)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


async def post(server: Any, messages: Any, **fields: Any) -> Any:
    return await server.client.post("/v1/chat/completions", {"messages": messages, **fields})


async def test_the_shape_of_an_answer(serve: Serve) -> None:
    answer = await post(serve(FakeEngine(text_script("Hello"))), [USER])
    body = answer.json
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", body.pop("id"))
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith("fp_")
    prompt = len("<user>Hi\n<assistant>")
    assert body == {
        "object": "chat.completion",
        "model": "model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 6,
            "total_tokens": prompt + 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_roles_and_text_parts_reach_the_template(serve: Serve, recorder: Recorder) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    answer = await post(
        serve(FakeEngine(tokenizer=recorder)),
        [
            {"role": "system", "content": "S"},
            {"role": "developer", "content": "D"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "N"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
            {"role": "user", "content": ""},
        ],
    )
    assert answer.status == 200
    assert recorder.messages == [
        {"role": "system", "content": "S"},
        {"role": "system", "content": "D"},
        {"role": "user", "content": "a\nb", "name": "N"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "user", "content": ""},
    ]


async def test_an_answer_can_be_sent_back(serve: Serve) -> None:
    server = serve()
    message = (await post(server, [USER])).json["choices"][0]["message"]
    message |= {"audio": None, "function_call": None, "tool_calls": None, "annotations": []}  # as openai's client adds
    assert (await post(server, [USER, message, USER])).status == 200


async def test_template_options(serve: Serve, recorder: Recorder) -> None:
    server = serve(FakeEngine(tokenizer=recorder))
    fields = {"add_generation_prompt": False, "chat_template_kwargs": {"enable_thinking": False}}
    answer = await post(server, [USER], **fields)
    assert recorder.kwargs == {"add_generation_prompt": False, "enable_thinking": False}
    assert answer.json["usage"]["prompt_tokens"] == len("<user>Hi\n")
    await post(server, [USER])
    assert recorder.kwargs == {"add_generation_prompt": True}


async def test_without_a_bound_the_answer_may_fill_the_context(serve: Serve) -> None:
    answer = await post(serve(FakeEngine(text_script("a", eos=False))), [USER])
    assert answer.json["usage"]["total_tokens"] == 256
    assert answer.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("bound", [{"max_tokens": 3}, {"max_completion_tokens": 3}])
async def test_both_names_of_the_bound(serve: Serve, bound: Any) -> None:
    assert (await post(serve(), [USER], **bound)).json["usage"]["completion_tokens"] == 3


async def test_n_answers(serve: Serve) -> None:
    engine = FakeEngine(lambda request, index: [ord("0") + index, EOS])
    choices = (await post(serve(engine), [USER], n=3)).json["choices"]
    assert [(c["index"], c["message"]["content"]) for c in choices] == [(0, "0"), (1, "1"), (2, "2")]


async def test_L1_byte_tokens_come_with_their_true_bytes(serve: Serve) -> None:
    engine = FakeEngine(lambda request, index: [0xC4, 0x8F, EOS])
    answer = await post(serve(engine), [USER], logprobs=True, top_logprobs=2, max_tokens=2)
    first, second = answer.json["choices"][0]["logprobs"]["content"]
    assert (first["bytes"], second["bytes"]) == ([0xC4], [0x8F])
    assert [token["bytes"] for token in first["top_logprobs"]] == [[0xC4], [0xC5]]
    assert [token["logprob"] for token in first["top_logprobs"]] == [-0.5, -1.5]
    assert all(isinstance(token["token"], str) for token in (first, second))


@pytest.mark.parametrize("stream", [False, True])
async def test_L2_logprobs_without_alternatives(serve: Serve, stream: bool) -> None:
    engine = FakeEngine(text_script("ab", eos=False))
    answer = await post(serve(engine), [USER], logprobs=True, top_logprobs=0, max_tokens=2, stream=stream)
    if stream:
        objects = [c["choices"][0]["logprobs"] for c in answer.chunks]
        content = [entry for o in objects if o for entry in o["content"]]
    else:
        content = answer.json["choices"][0]["logprobs"]["content"]
    assert content == [
        {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []},
        {"token": "b", "logprob": -0.5, "bytes": [98], "top_logprobs": []},
    ]


async def test_fields_that_change_nothing_are_accepted(serve: Serve) -> None:
    answer = await post(
        serve(),
        [USER],
        user="u",
        metadata={"a": "b"},
        parallel_tool_calls=True,
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        store=False,
        service_tier="auto",
        modalities=["text"],
        audio=None,
        prompt_cache_key="k",
    )
    assert answer.status == 200


async def test_tools_pass_where_none_may_be_called(serve: Serve) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert (await post(serve(), [USER], tools=tools, tool_choice="none")).status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/openai/v1/chat/completions"])
async def test_paths(serve: Serve, path: str) -> None:
    answer = await serve().client.post(path, {"model": "org/alias", "messages": [USER]})
    assert answer.json["model"] == "org/alias"
