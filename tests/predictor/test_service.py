"""The door: availability, all or nothing, ids, and the counting of refusals."""

from __future__ import annotations

import pytest

from engine.errors import (
    EngineDeadError,
    EngineDrainingError,
    EngineLoadingError,
    InvalidPromptError,
    OverloadedError,
)
from engine.sampling_params import SamplingParams
from tests.fake_engine import FakeEngine

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
