"""Whole results: all streams beside each other, and none left behind."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import RequestAbortedError
from engine.sampling_params import SamplingParams
from predictor.collect import collect_all
from tests.fake_engine import FakeEngine
from tests.predictor.openai.asgi_client import until

PARAMS = SamplingParams(max_tokens=4, n=2)


async def test_results_come_in_the_order_of_the_streams(make_app) -> None:
    app = make_app(FakeEngine(lambda request, index: [*request.prompt.encode(), 256]))
    results = await collect_all(app.service.submit_many(["ab", "c"], PARAMS))
    assert [[output.text for output in result.outputs] for result in results] == [["ab", "ab"], ["c", "c"]]


async def test_the_first_error_aborts_the_others(make_app) -> None:
    app = make_app(FakeEngine(pause_after=1))
    streams = app.service.submit_many(["ab", "c"], PARAMS)
    collecting = asyncio.ensure_future(collect_all(streams))
    await asyncio.sleep(0)
    streams[1].fail(RequestAbortedError("no more"))
    with pytest.raises(RequestAbortedError, match="no more"):
        await collecting
    assert app.engine.aborted == [streams[0].request.request_id]


async def test_a_caller_that_is_cancelled_aborts_them_all(make_app) -> None:
    app = make_app(FakeEngine(pause_after=1))
    collecting = asyncio.ensure_future(collect_all(app.service.submit_many(["ab", "c"], PARAMS)))
    await until(lambda: app.engine.num_requests == 2 and app.engine.num_waiting == 0)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    assert app.engine.num_requests == 0
    assert len(app.engine.aborted) == 2
