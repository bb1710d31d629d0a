"""The engine client over a real engine process that serves a tiny random checkpoint."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from engine.client import AsyncEngine
from engine.config import EngineConfig
from engine.errors import (
    DeadlineExceededError,
    EngineDeadError,
    EngineLoadingError,
    RequestAbortedError,
    SlowReaderError,
)
from engine.messages import ModelInfo, StepOutputs
from engine.metrics import RequestRecord
from engine.sampling_params import SamplingParams
from tests.tiny_models import make_checkpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=4000, temperature=0, ignore_eos=True)
"""For requests that must still run when the test has looked at them: seconds."""
LIMIT = 25.0
"""Five times the design's deadline of 5 s for noticing a dead engine."""


class Recorder:
    """An `EngineListener` that keeps what it was told."""

    def __init__(self) -> None:
        self.up: list[bool] = []
        self.records: list[RequestRecord] = []
        self.steps: list[StepOutputs] = []
        self.queue_seconds: list[float] = []
        self.first_tokens: list[float] = []
        self.gaps = 0

    def on_ready(self, info: ModelInfo) -> None:
        self.info = info

    def on_up(self, up: bool) -> None:
        self.up.append(up)

    def on_step(self, outputs: StepOutputs) -> None:
        self.steps.append(outputs)

    def on_load(self, num_running: int, num_waiting: int, num_waiting_prompt_tokens: int) -> None:
        self.load = (num_running, num_waiting, num_waiting_prompt_tokens)

    def on_admitted(self, queue_seconds: float) -> None:
        self.queue_seconds.append(queue_seconds)

    def on_first_token(self, seconds_since_arrival: float, num_prompt_tokens: int) -> None:
        self.first_tokens.append(seconds_since_arrival)

    def on_inter_token(self, seconds: float, count: int) -> None:
        self.gaps += count

    def on_finished(self, record: RequestRecord) -> None:
        self.records.append(record)

    def on_rejected(self, reason: str) -> None:
        raise AssertionError("the client refuses nothing")


async def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Waits for a condition that another task or process brings about."""
    end = time.monotonic() + limit
    while True:
        is_late = time.monotonic() >= end
        if condition():
            return
        assert not is_late, "the condition did not come true in time"
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("client") / "tiny", max_position_embeddings=4096)


@asynccontextmanager
async def started_engine(checkpoint: Path) -> AsyncIterator[tuple[AsyncEngine, Recorder]]:
    recorder = Recorder()
    config = EngineConfig(model_dir=checkpoint, num_kv_blocks=1536, num_threads=1, dtype="float32")
    engine = AsyncEngine(config, recorder)
    engine.start()
    try:
        yield engine, recorder
    finally:
        await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(checkpoint: Path) -> AsyncIterator[tuple[AsyncEngine, Recorder]]:
    async with started_engine(checkpoint) as (engine, recorder):
        with pytest.raises(EngineLoadingError):
            engine.prepare("too early", SamplingParams())
        assert engine.is_live(0.0)
        await engine.wait_ready()
        yield engine, recorder
    assert engine.phase == "stopped"
    assert recorder.up == [True, False]


async def test_a_request_runs_and_is_recorded_once(running: tuple[AsyncEngine, Recorder]) -> None:
    engine, recorder = running
    before = len(recorder.records), len(recorder.first_tokens), recorder.gaps
    stream = engine.submit(engine.prepare("hello world", SamplingParams(n=3, max_tokens=5, seed=1, ignore_eos=True)))
    assert engine.num_waiting == 3
    assert recorder.load == (0, 3, 3 * len(stream.request.prompt_token_ids))
    output = await stream.collect()
    assert recorder.load == (0, 0, 0)
    assert [len(o.token_ids) for o in output.outputs] == [5, 5, 5]
    assert {o.finish_reason for o in output.outputs} == {"length"}
    assert len(recorder.records) == before[0] + 1
    assert len(recorder.first_tokens) == before[1] + 1
    assert recorder.gaps == before[2] + 12
    record = recorder.records[-1]
    assert (record.finish_reason, record.num_output_tokens) == ("length", 15)
    assert record.admitted_time is not None
    assert record.arrival_time <= record.admitted_time <= record.finish_time
    assert engine.num_waiting == engine.num_waiting_prompt_tokens == engine.num_requests == 0


async def test_M1_gauges_fall_to_zero_after_aborts_with_no_further_step(
    running: tuple[AsyncEngine, Recorder],
) -> None:
    engine, recorder = running
    records = len(recorder.records)
    streams = [engine.submit(engine.prepare([5, 6, 7 + i], ENDLESS)) for i in range(5)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    assert recorder.load == (5, 0, 0)
    for stream in streams:
        stream.abort()
    assert engine.num_requests == 0
    assert recorder.load == (0, 0, 0)
    await until(lambda: recorder.steps[-1].stats.num_running == 0)
    stats = recorder.steps[-1].stats
    assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)
    assert [r.finish_reason for r in recorder.records[records:]] == ["abort"] * 5


async def test_a_request_that_cannot_be_sent_leaves_nothing_behind(running: tuple[AsyncEngine, Recorder]) -> None:
    engine, recorder = running
    request = replace(engine.prepare([1, 2, 3], LONG), seed=2**70)
    records = len(recorder.records)
    with pytest.raises(OverflowError):
        engine.submit(request)
    assert engine.num_requests == engine.num_waiting == engine.num_waiting_prompt_tokens == 0
    assert len(recorder.records) == records
    output = await engine.submit(engine.prepare([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))).collect()
    assert output.finished


async def test_a_stop_string_ends_the_sequence_in_the_engine_too(running: tuple[AsyncEngine, Recorder]) -> None:
    engine, recorder = running
    whole = await engine.submit(engine.prepare([9, 8, 7], LONG)).collect()
    text = whole.outputs[0].text
    stop = next(
        text[i : i + 2] for i in range(20, len(text)) if text[i : i + 2].isascii() and i == text.find(text[i : i + 2])
    )
    params = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True, stop=stop)
    output = await engine.submit(engine.prepare([9, 8, 7], params)).collect()
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason == stop
    assert output.outputs[0].text == text[: text.find(stop)]
    await until(lambda: recorder.steps[-1].stats.num_running == 0)


async def test_a_deadline_aborts(running: tuple[AsyncEngine, Recorder]) -> None:
    engine, recorder = running
    request = engine.prepare([1, 2, 3], LONG, deadline=time.monotonic())
    with pytest.raises(DeadlineExceededError):
        await engine.submit(request).collect()
    assert recorder.records[-1].finish_reason == "abort"


async def test_abort_all_raises_in_every_stream(running: tuple[AsyncEngine, Recorder]) -> None:
    engine, _ = running
    streams = [engine.submit(engine.prepare([1, 2, i], ENDLESS)) for i in range(3)]
    engine.abort_all(RequestAbortedError("draining"))
    for stream in streams:
        with pytest.raises(RequestAbortedError, match="draining"):
            await stream.collect()


async def test_M5_a_stopped_process_with_work_is_not_live_and_an_idle_one_is(
    running: tuple[AsyncEngine, Recorder],
) -> None:
    engine, _ = running
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        assert engine.is_live(stall_timeout=0.05)
        stream = engine.submit(engine.prepare([1, 2, 3], LONG))
        assert engine.is_live(stall_timeout=8.0)
        await until(lambda: not engine.is_live(stall_timeout=0.05))
    finally:
        os.kill(engine.pid, signal.SIGCONT)
    await anext(stream)
    assert engine.is_live(stall_timeout=5.0)
    stream.abort()


async def test_M4_a_killed_process_ends_every_stream_and_says_so(checkpoint: Path) -> None:
    async with started_engine(checkpoint) as (engine, recorder):
        await engine.wait_ready()
        streams = [engine.submit(engine.prepare([1, 2, i], ENDLESS)) for i in range(3)]
        await anext(streams[0])
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await asyncio.wait_for(engine.wait_dead(), LIMIT)
        assert engine.phase == "dead"
        assert not engine.is_live(120.0)
        for stream in streams:
            with pytest.raises(EngineDeadError):
                await stream.collect()
        with pytest.raises(EngineDeadError):
            engine.prepare("x", SamplingParams())
        assert {r.finish_reason for r in recorder.records} == {"error"}
        assert recorder.up == [True, False]


async def test_a_model_that_cannot_be_loaded_is_dead_with_the_reason(tmp_path: Path) -> None:
    async with started_engine(tmp_path / "nothing-here") as (engine, _):
        with pytest.raises(EngineDeadError, match="nothing-here"):
            await engine.wait_ready()


async def test_a_reader_too_far_behind_is_an_abort_and_frees_the_engine(running: tuple[AsyncEngine, Recorder]) -> None:
    engine, recorder = running
    before = len(recorder.records)
    engine.max_stream_buffer, usual = 20, engine.max_stream_buffer
    try:
        stream = engine.submit(engine.prepare("hello world", LONG))
    finally:
        engine.max_stream_buffer = usual

    async def read() -> None:
        # NOTE: more tokens than may wait can have come before even the first one is read.
        await anext(stream)
        await asyncio.wait_for(engine.wait_idle(), LIMIT)
        await anext(stream)

    with pytest.raises(SlowReaderError):
        await read()
    assert [record.finish_reason for record in recorder.records[before:]] == ["abort"]
    await until(lambda: recorder.steps[-1].stats.num_running == 0)
    output = await engine.submit(engine.prepare("hello world", LONG)).collect()
    assert len(output.outputs[0].token_ids) == 400
