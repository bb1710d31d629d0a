"""Several streams read as one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import EngineDeadError
from engine.sampling_params import SamplingParams
from predictor.openai import feed as feed_module
from predictor.openai.feed import DeltaFeed
from tests.fake_engine import EOS, FakeEngine
from tests.predictor.openai.asgi_client import until


def submit(engine: FakeEngine, prompts: list[str], **params: Any) -> list[Any]:
    return [engine.submit(engine.prepare(prompt, SamplingParams(**params))) for prompt in prompts]


async def drain(feed: DeltaFeed, texts: dict[int, str]) -> dict[int, str]:
    while batch := await feed.next_batch():
        for index, delta in batch:
            texts[index] = texts.get(index, "") + delta.text
    return texts


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("prompts", [["a"], ["a", "b", "c"]])
async def test_every_delta_comes_once_and_in_order(prompts: list[str], n: int) -> None:
    engine = FakeEngine(lambda request, index: [*request.prompt_token_ids, *b"-xyz-", ord("0") + index, EOS])
    texts = await drain(DeltaFeed(submit(engine, prompts, n=n)), {})
    assert texts == {p * n + i: f"{prompt}-xyz-{i}" for p, prompt in enumerate(prompts) for i in range(n)}


async def test_an_error_comes_after_the_deltas_before_it() -> None:
    engine = FakeEngine(fail_after=2)
    feed = DeltaFeed(submit(engine, ["a"], n=2))
    texts: dict[int, str] = {}
    with pytest.raises(EngineDeadError):
        await drain(feed, texts)
    assert texts == {0: "He", 1: "He"}


async def test_one_failing_stream_ends_the_feed() -> None:
    engine = FakeEngine(pause_after=1)
    streams = submit(engine, ["a", "b"])
    feed = DeltaFeed(streams)
    await feed.next_batch()
    streams[1].fail(EngineDeadError("gone"))
    with pytest.raises(EngineDeadError, match="gone"):
        await drain(feed, {})


async def test_close_aborts_what_runs_and_ends_the_tasks() -> None:
    engine = FakeEngine(pause_after=1)
    feed = DeltaFeed(submit(engine, ["a", "b"], n=2))
    await feed.next_batch()
    feed.close()
    feed.close()
    assert engine.num_requests == 0
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def test_a_slow_reader_is_read_ahead_for_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_BUFFERED", 4)
    engine = FakeEngine(lambda request, index: [*b"0123456789" * 5, EOS])
    feed = DeltaFeed(submit(engine, ["a", "b"], max_tokens=60))
    texts: dict[int, str] = {}
    largest = 0
    while True:
        await until(lambda: engine.num_requests == 0)  # the engine runs ahead, the feed does not
        batch = await feed.next_batch()
        if not batch:
            break
        largest = max(largest, len(batch))
        for index, delta in batch:
            texts[index] = texts.get(index, "") + delta.text
    assert texts == {0: "0123456789" * 5, 1: "0123456789" * 5}
    assert largest <= 5
