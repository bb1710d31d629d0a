"""The door: availability, all or nothing, ids, and the counting of refusals."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from engine.errors import (
    ContextLengthError,
    DeadlineExceededError,
    EngineDeadError,
    EngineDrainingError,
    EngineLoadingError,
    InvalidParameterError,
    InvalidPromptError,
    OverloadedError,
)
from engine.inputs import EncodedPrompt
from engine.sampling_params import SamplingParams
from predictor.service import MAX_INLINE_CHARACTERS
from tests.fake_engine import MODEL_INFO, FakeEngine

PARAMS = SamplingParams(max_tokens=4)


async def test_loading_is_said_with_the_progress(make_app) -> None:
    app = make_app(FakeEngine(phase="loading"))
    with pytest.raises(EngineLoadingError, match="loading weights: 3 of 30"):
        app.service.submit("Hi", PARAMS)
    with pytest.raises(EngineLoadingError):
        _ = app.service.info
    assert not app.service.is_ready
    assert app.service.is_live
    assert app.value("requests_rejected_total", reason="loading") == 1


async def test_draining_refuses_new_requests_and_keeps_running_ones(make_app) -> None:
    app = make_app()
    stream = app.service.submit("Hi", PARAMS)
    app.service.start_draining()
    with pytest.raises(EngineDrainingError):
        app.service.submit("Hi", PARAMS)
    assert not app.service.is_ready
    assert app.service.is_live
    assert (await stream.collect()).outputs[0].finish_reason == "length"
    assert app.value("requests_rejected_total", reason="draining") == 1


async def test_a_dead_engine_is_said_even_while_draining(make_app) -> None:
    app = make_app()
    app.engine.die("out of memory")
    app.service.start_draining()
    with pytest.raises(EngineDeadError, match="out of memory"):
        app.service.submit("Hi", PARAMS)
    assert not app.service.is_live
    assert app.value("requests_rejected_total", reason="dead") == 1


async def test_a_stalled_engine_is_neither_live_nor_ready(make_app) -> None:
    app = make_app()
    app.engine.live = False
    assert not app.service.is_live
    assert not app.service.is_ready


async def test_one_bad_prompt_refuses_the_batch_and_leaves_nothing_behind(make_app) -> None:
    app = make_app()
    with pytest.raises(InvalidPromptError):
        app.service.submit_many(["Hi", [5, 999_999]], PARAMS)
    assert app.engine.num_requests == 0


async def test_a_batch_that_can_never_fit_is_refused_before_its_prompts_are_looked_at(make_app) -> None:
    app = make_app(max_waiting_requests=3)
    with pytest.raises(InvalidParameterError, match="4 sequences"):
        app.service.submit_many([[999_999]] * 4, PARAMS)


async def test_a_batch_over_the_bound_leaves_nothing_behind(make_app) -> None:
    app = make_app(FakeEngine(admitting=False), max_waiting_requests=3)
    streams = app.service.submit_many(["a", "b"], PARAMS)
    with pytest.raises(OverloadedError):
        app.service.submit_many(["c", "d"], PARAMS)
    assert app.engine.num_requests == 2
    for stream in streams:
        stream.abort()


async def test_a_failing_submission_aborts_those_before_it(make_app, monkeypatch) -> None:
    app = make_app()
    submit = app.engine.submit

    def second_fails(request):
        if app.engine.num_requests:
            raise EngineDeadError("the pipe broke")
        return submit(request)

    monkeypatch.setattr(app.engine, "submit", second_fails)
    with pytest.raises(EngineDeadError):
        app.service.submit_many(["a", "b"], PARAMS)
    assert app.engine.num_requests == 0
    assert len(app.engine.aborted) == 1


async def test_equal_request_ids_do_not_collide(make_app) -> None:
    app = make_app()
    streams = app.service.submit_many(["a", "b"], PARAMS, request_ids=["same", "same"])
    ids = [stream.request.request_id for stream in streams]
    assert len(set(ids)) == 2
    assert all(i.startswith("same") for i in ids)
    for stream in streams:
        assert (await stream.collect()).outputs[0].text == "Hell"


async def test_parameters_one_a_prompt(make_app) -> None:
    app = make_app()
    streams = app.service.submit_many(["a", "b"], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=3)])
    assert [(await s.collect()).outputs[0].text for s in streams] == ["H", "Hel"]


async def test_a_refusal_by_check_available_counts_once(make_app) -> None:
    app = make_app(FakeEngine(phase="loading"))
    with pytest.raises(EngineLoadingError):
        app.service.check_available()
    assert app.value("requests_rejected_total", reason="loading") == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/completions", {"prompt": "Hi" * 4000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/models/model:predict", {"instances": ["Hi"]}),
        ("/v2/models/model/generate", {"text_input": "Hi"}),
        (
            "/v2/models/model/infer",
            {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]}]},
        ),
    ],
)
async def test_every_surface_counts_a_refused_request_once(make_app, path: str, body: object) -> None:
    app = make_app()
    app.service.start_draining()
    assert (await app.client.post(path, body)).status == 503
    assert app.value("requests_rejected_total", reason="draining") == 1


def long_app(make_app, engine: FakeEngine | None = None, **options):
    info = replace(MODEL_INFO, max_model_len=100_000, num_blocks=10_000)
    return make_app(engine or FakeEngine(info=info), **options)


async def test_long_texts_are_tokenised_off_the_event_loop(make_app) -> None:
    app = long_app(make_app)
    threads: list[str] = []
    encode = app.engine.encode

    def note_thread(text: str, **options: bool) -> EncodedPrompt:
        threads.append(threading.current_thread().name)
        return encode(text, **options)

    app.engine.encode = note_thread
    text = "x" * (MAX_INLINE_CHARACTERS + 1)
    prompts = await app.service.encode([text, [1, 2]])
    assert prompts == [EncodedPrompt(text, tuple(text.encode())), [1, 2]]
    assert threads[0].startswith("tokenizer")
    assert await app.service.encode(["short"]) == ["short"]
    assert await app.service.encode(["short"], add_special_tokens=False) == [EncodedPrompt("short", tuple(b"short"))]
    (stream, other) = app.service.submit_many(prompts, PARAMS)
    assert stream.request.prompt == text
    assert (await stream.collect()).prompt_token_ids == list(text.encode())
    other.abort()


async def test_texts_being_tokenised_are_bounded_by_the_queue(make_app) -> None:
    app = long_app(make_app, max_waiting_requests=2)
    go = threading.Event()
    encode = app.engine.encode

    def wait_and_encode(text: str, **options: bool) -> EncodedPrompt:
        assert go.wait(60)
        return encode(text, **options)

    app.engine.encode = wait_and_encode
    text = "x" * (MAX_INLINE_CHARACTERS + 1)
    two = [asyncio.ensure_future(app.service.encode([text])) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await app.service.encode([text])
    assert app.value("requests_rejected_total", reason="waiting_requests") == 1
    go.set()
    await asyncio.gather(*two)
    assert await app.service.encode([text])


async def test_a_long_text_that_cannot_fit_is_not_tokenised(make_app) -> None:
    app = make_app()
    with pytest.raises(ContextLengthError):
        await app.service.encode(["x" * (256 * 256 + 1)])


async def test_deadlines_one_a_prompt(make_app) -> None:
    app = make_app(FakeEngine(admitting=False))
    slow, fast = app.service.submit_many(["a", "b"], PARAMS, deadline=[None, time.monotonic()])
    with pytest.raises(DeadlineExceededError):
        await fast.collect()
    assert slow.request.deadline is None
    slow.abort()
