"""The real server through OpenAI's own client: sync, async, streamed, refused and gone away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.server import Server, until

CAPITAL = "The capital of France is"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def client_of(server: Server, prefix: str = "/v1") -> OpenAI:
    return OpenAI(base_url=server.http_url + prefix, api_key="none", max_retries=0)


def async_client_of(server: Server) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.http_url + "/v1", api_key="none", max_retries=0)


@pytest.fixture
def chat(chat_server: Server) -> Iterator[OpenAI]:
    with client_of(chat_server) as client:
        yield client


@pytest.fixture
def tiny(tiny_server: Server) -> Iterator[OpenAI]:
    with client_of(tiny_server) as client:
        yield client


def served(client: OpenAI) -> str:
    return client.models.list().data[0].id


@pytest.mark.parametrize("prefix", ["/v1", "/openai/v1"])
def test_the_capital_of_france(chat_server: Server, prefix: str) -> None:
    with client_of(chat_server, prefix) as client:
        answer = client.completions.create(model=served(client), prompt=CAPITAL, max_tokens=5, temperature=0)
    assert answer.choices[0].text.startswith(" Paris")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 5, 10)


def test_the_capital_of_france_streamed(chat: OpenAI) -> None:
    stream = chat.completions.create(model=served(chat), prompt=CAPITAL, max_tokens=5, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream).startswith(" Paris")


def test_chat_is_the_same_streamed_or_not(chat: OpenAI) -> None:
    fields: dict[str, Any] = {"model": served(chat), "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = chat.chat.completions.create(**fields)
    message = whole.choices[0].message
    assert message.role == "assistant"
    assert message.content
    text, usage, reasons = "", None, []
    for chunk in chat.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text == message.content
    assert [r for r in reasons if r] == [whole.choices[0].finish_reason]
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_chat_log_probabilities(chat: OpenAI) -> None:
    answer = chat.chat.completions.create(
        model=served(chat), messages=QUESTION, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    content = logprobs.content or []
    text = b"".join(bytes(token.bytes or ()) for token in content)
    assert text.decode() == answer.choices[0].message.content
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(top.logprob for top in token.top_logprobs)


def test_an_answer_can_be_sent_back(chat: OpenAI) -> None:
    first = chat.chat.completions.create(model=served(chat), messages=QUESTION, max_tokens=8, temperature=0)
    turns: Any = [*QUESTION, first.choices[0].message.model_dump(), {"role": "user", "content": "And of Italy?"}]
    second = chat.chat.completions.create(model=served(chat), messages=turns, max_tokens=8, temperature=0)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


async def test_async_streamed_and_not(chat_server: Server) -> None:
    async with async_client_of(chat_server) as client:
        model = (await client.models.list()).data[0].id
        fields: dict[str, Any] = {"model": model, "prompt": CAPITAL, "max_tokens": 5, "temperature": 0}
        whole = await client.completions.create(**fields)
        stream = await client.completions.create(**fields, stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert text == whole.choices[0].text
    assert text.startswith(" Paris")


async def test_32_streams_at_once_each_equal_to_its_own_run(tiny_server: Server) -> None:
    async with async_client_of(tiny_server) as client:

        async def run(number: int) -> str:
            stream = await client.completions.create(
                model="tiny", prompt=f"stream {number}", max_tokens=24 + number, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        together = await asyncio.gather(*(run(number) for number in range(32)))
        alone = [await run(number) for number in range(32)]
    assert together == alone
    assert len(set(alone)) > 16


@pytest.fixture(scope="module")
def chunking_server(tiny_model: Path) -> Iterator[Server]:
    """A step takes at most 16 tokens."""
    with Server(model_dir=tiny_model, dtype="float32", num_threads=1, num_kv_blocks=64, max_num_batched_tokens=16) as s:
        yield s


def test_S8_usage_of_a_prompt_of_3_chunks_is_exact(chunking_server: Server) -> None:
    fields: dict[str, Any] = {"model": "tiny", "prompt": [7] * 40, "max_tokens": 5, "extra_body": {"ignore_eos": True}}
    with client_of(chunking_server) as client:
        usages = [client.completions.create(**fields).usage]
        *_, last = client.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        usages.append(last.usage)
    counts = [(u.prompt_tokens, u.completion_tokens, u.total_tokens) for u in usages if u is not None]
    assert counts == [(40, 5, 45)] * 2


def test_prompts_and_copies(tiny: OpenAI) -> None:
    answer = tiny.completions.create(
        model="tiny", prompt=["first", "second"], n=2, max_tokens=4, temperature=0, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_a_seed_repeats_a_sample(tiny: OpenAI) -> None:
    def sample(seed: int) -> str:
        return tiny.completions.create(model="tiny", prompt="seed", max_tokens=16, seed=seed).choices[0].text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1


def test_the_clients_exceptions(tiny: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        tiny.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        tiny.completions.create(model="tiny", prompt=[5, 999999])
    assert (caught.value.param, caught.value.type) == ("prompt", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as caught:
        tiny.completions.create(model="tiny", prompt=[5] * 4096, stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        tiny.completions.create(model="tiny", prompt="a", extra_body={"no_such_field": 1})
    assert caught.value.param == "no_such_field"


def test_aliases_and_models(tiny: OpenAI) -> None:
    assert {"tiny", "org/tiny"} <= {card.id for card in tiny.models.list()}
    assert tiny.models.retrieve("org/tiny").id == "org/tiny"
    assert tiny.completions.create(model="org/tiny", prompt="a", max_tokens=1).model == "org/tiny"


def test_a_stream_that_the_client_leaves_is_aborted(tiny_server: Server, tiny: OpenAI) -> None:
    aborts = tiny_server.metric("requests_total", finish_reason="abort")
    stream = tiny.completions.create(
        model="tiny", prompt="leave", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    until(lambda: tiny_server.metric("requests_running") == 1, "the request to run")
    stream.close()
    until(lambda: tiny_server.metric("requests_running") == 0, "the gauge to fall")
    assert tiny_server.metric("requests_total", finish_reason="abort") == aborts + 1


async def test_an_answer_that_the_client_does_not_wait_for_is_aborted(tiny_server: Server) -> None:
    aborts = tiny_server.metric("requests_total", finish_reason="abort")
    async with async_client_of(tiny_server) as client:
        answer = asyncio.create_task(
            client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=4000, extra_body={"ignore_eos": True})
        )
        await asyncio.to_thread(until, lambda: tiny_server.metric("requests_running") == 2, "both to run")
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
    until(lambda: tiny_server.metric("requests_running") == 0, "the gauge to fall")
    assert tiny_server.metric("requests_total", finish_reason="abort") == aborts + 2
