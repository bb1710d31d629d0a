"""The server's life over the scripted engine: loading, ready, drain, death, exit codes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.errors import ConfigError, EngineDeadError, RequestAbortedError
from engine.sampling_params import SamplingParams
from predictor.lifecycle import MIN_GRACE_SECONDS, Lifecycle
from predictor.service import GenerationService
from tests.fake_engine import FakeEngine
from tests.predictor.openai.asgi_client import until


@dataclass
class Listeners:
    """Stand-ins of the HTTP and the gRPC server that note what they are told."""

    calls: list[str] = field(default_factory=list)
    grpc_error: Exception | None = None
    http_grace: float = 0.0

    async def start(self) -> None:
        self.calls.append("grpc start")
        if self.grpc_error is not None:
            raise self.grpc_error


class Http:
    def __init__(self, listeners: Listeners) -> None:
        self.listeners = listeners

    async def wait_open(self) -> int:
        return 8080

    def stop(self, grace: float) -> None:
        self.listeners.http_grace = grace
        self.listeners.calls.append("http stop")


class Grpc:
    port = 8081

    def __init__(self, listeners: Listeners) -> None:
        self.listeners = listeners

    async def start(self) -> None:
        await self.listeners.start()

    async def stop(self, grace: float) -> None:
        self.listeners.calls.append("grpc stop")


@dataclass
class Life:
    engine: FakeEngine
    service: GenerationService
    lifecycle: Lifecycle
    listeners: Listeners
    task: asyncio.Task[None]
    ended_with: list[int]

    async def end(self) -> int:
        async with asyncio.timeout(60):
            await self.task
        return self.lifecycle.exit_code


@pytest.fixture
async def live(make_app) -> AsyncIterator[Callable[..., Life]]:
    lives: list[Life] = []

    def build(engine: FakeEngine | None = None, *, grpc_error: Exception | None = None, **options: Any) -> Life:
        app = make_app(engine)
        listeners, ended_with = Listeners(grpc_error=grpc_error), []
        lifecycle = Lifecycle(
            app.engine,
            app.service,
            Http(listeners),
            Grpc(listeners),
            **{"drain_timeout": 60.0, "death_notice": 0.0, "end_now": ended_with.append, **options},
        )
        life = Life(app.engine, app.service, lifecycle, listeners, asyncio.ensure_future(lifecycle.run()), ended_with)
        lives.append(life)
        return life

    yield build
    for life in lives:
        life.task.cancel()
        await asyncio.gather(life.task, return_exceptions=True)
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        asyncio.get_running_loop().remove_signal_handler(one)


async def test_the_listeners_open_before_the_model_is_loaded_and_a_curl_is_shown(live, capsys) -> None:
    life = live(FakeEngine(phase="loading"))
    await until(lambda: life.engine.started)
    assert life.listeners.calls == ["grpc start"]
    assert capsys.readouterr().out == ""
    life.engine.finish_loading()
    shown = ""

    def was_shown() -> bool:
        nonlocal shown
        shown += capsys.readouterr().out
        return "curl" in shown

    await until(was_shown)
    assert shown.splitlines()[-1].startswith("curl http://localhost:8080/v1/completions ")
    assert "gRPC port 8081" in shown


async def test_a_model_that_cannot_be_loaded_ends_with_1_at_once(live) -> None:
    life = live(FakeEngine(phase="loading"), death_notice=1000.0)
    await until(lambda: life.engine.started)
    life.engine.die("no such folder")
    assert await life.end() == 1
    assert life.listeners.calls == ["grpc start", "http stop", "grpc stop"]


async def test_M4_a_dead_engine_fails_the_streams_is_announced_for_a_while_and_ends_with_1(live) -> None:
    life = live(death_notice=0.2)
    await until(lambda: life.engine.started)
    await asyncio.wait_for(life.engine.wait_ready(), 60)
    stream = life.service.submit("Hi", SamplingParams(max_tokens=200, ignore_eos=True))
    await anext(aiter(stream))
    began = time.monotonic()
    life.engine.die()
    with pytest.raises(EngineDeadError):
        await stream.collect()
    assert not life.service.is_live
    assert await life.end() == 1
    assert time.monotonic() - began >= 0.2


async def test_M9_a_signal_lets_running_requests_finish_and_refuses_new_ones(live) -> None:
    life = live(FakeEngine(pause_after=3))
    await until(lambda: life.engine.started)
    stream = life.service.submit("Hi", SamplingParams(max_tokens=50, ignore_eos=True))
    result = asyncio.ensure_future(stream.collect())
    await until(lambda: stream.first_token_time is not None)
    signal.raise_signal(signal.SIGTERM)
    await until(lambda: life.service.is_draining)
    assert not life.service.is_ready
    assert "http stop" not in life.listeners.calls
    life.engine.resume()
    assert await life.end() == 0
    output = (await result).outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (50, "length")
    assert life.listeners.calls == ["grpc start", "http stop", "grpc stop"]


async def test_what_does_not_finish_within_the_drain_timeout_is_aborted_and_told(live) -> None:
    life = live(FakeEngine(pause_after=3), drain_timeout=0.1)
    await until(lambda: life.engine.started)
    stream = life.service.submit("Hi", SamplingParams(max_tokens=50, ignore_eos=True))
    await until(lambda: stream.first_token_time is not None)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(RequestAbortedError, match="drain timeout"):
        await stream.collect()
    assert await life.end() == 0


async def test_a_signal_while_loading_ends_with_0(live) -> None:
    life = live(FakeEngine(phase="loading"))
    await until(lambda: life.engine.started)
    signal.raise_signal(signal.SIGTERM)
    assert await life.end() == 0


async def test_an_engine_that_dies_during_the_drain_ends_with_1(live) -> None:
    life = live(FakeEngine(pause_after=3))
    await until(lambda: life.engine.started)
    stream = life.service.submit("Hi", SamplingParams(max_tokens=50, ignore_eos=True))
    signal.raise_signal(signal.SIGTERM)
    await until(lambda: life.service.is_draining)
    life.engine.die()
    with pytest.raises(EngineDeadError):
        await stream.collect()
    assert await life.end() == 1


async def test_a_second_signal_ends_at_once(live) -> None:
    life = live(FakeEngine(pause_after=3))
    await until(lambda: life.engine.started)
    life.service.submit("Hi", SamplingParams(max_tokens=50, ignore_eos=True))
    life.lifecycle.on_signal(signal.SIGINT)
    assert life.ended_with == []
    life.lifecycle.on_signal(signal.SIGINT)
    assert life.ended_with == [130]


async def test_a_grpc_port_that_cannot_be_had_is_an_error_of_the_start(live) -> None:
    life = live(grpc_error=ConfigError("port 8081 is in use"))
    with pytest.raises(ConfigError):
        await life.end()
    assert not life.engine.started
    assert "http stop" in life.listeners.calls


async def test_responses_may_go_out_in_what_is_left_of_the_drain(live) -> None:
    life = live(FakeEngine(), drain_timeout=60.0)
    await until(lambda: life.engine.started)
    signal.raise_signal(signal.SIGTERM)
    assert await life.end() == 0
    assert 50 < life.listeners.http_grace <= 60


async def test_responses_get_some_time_after_the_drain_at_any_rate(live) -> None:
    life = live(FakeEngine(), drain_timeout=0.0)
    await until(lambda: life.engine.started)
    signal.raise_signal(signal.SIGTERM)
    assert await life.end() == 0
    assert life.listeners.http_grace == MIN_GRACE_SECONDS
