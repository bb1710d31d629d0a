"""Long silent calls: pings in both directions, within what the server documents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from predictor.oip import grpc_server
from predictor.oip.schema import SERVICE, message_class
from tests.fake_engine import FakeEngine
from tests.predictor.oip.conftest import until
from tests.predictor.oip.test_grpc_server import text_message

PING_SECONDS = 1.0
"""The shortest that gRPC's clients do."""


def with_bound(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    options = dict(grpc_server.KEEP_ALIVE_OPTIONS)
    options["grpc.http2.min_ping_interval_without_data_ms"] = int(seconds * 1000)
    monkeypatch.setattr(grpc_server, "KEEP_ALIVE_OPTIONS", tuple(options.items()))


def pinging(target: str, seconds: float = PING_SECONDS) -> grpc.aio.Channel:
    """A client that pings that often, also when it has nothing to say."""
    options = [
        ("grpc.keepalive_time_ms", int(seconds * 1000)),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    return grpc.aio.insecure_channel(target, options=options)


def infer(channel: grpc.aio.Channel) -> Any:
    request = text_message(b"Hi")
    request.outputs.add(name="text_output")
    return channel.unary_unary(
        f"/{SERVICE}/ModelInfer", response_deserializer=message_class("ModelInferResponse").FromString
    )(request.SerializeToString())


async def test_pings_within_the_bound_keep_a_silent_call_and_far_beyond_it_cut_it_off(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_bound(monkeypatch, PING_SECONDS / 2)
    patient = await serve(FakeEngine(admitting=False))
    with_bound(monkeypatch, 60)
    strict = await serve(FakeEngine(admitting=False))
    async with pinging(patient.grpc.target) as kept_channel, pinging(strict.grpc.target) as cut_channel:
        kept, cut = infer(kept_channel), infer(cut_channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(60):
                await cut
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "ping" in str(caught.value.details())
        await until(lambda: strict.engine.num_requests == 0)
        assert not kept.done()
        patient.engine.release()
        assert (await kept).outputs[0].contents.bytes_contents == [b"Hello, world!"]


@pytest.mark.full
async def test_the_real_bound_keeps_a_silent_call(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(admitting=False))
    async with pinging(server.grpc.target, 5.5) as channel:
        call = infer(channel)
        await asyncio.wait({asyncio.ensure_future(call.code())}, timeout=30)
        assert not call.done()
        server.engine.release()
        assert (await call).outputs


def test_the_bounds_are_those_that_the_documentation_states() -> None:
    options = dict(grpc_server.KEEP_ALIVE_OPTIONS)
    assert options["grpc.http2.min_ping_interval_without_data_ms"] < 10_000  # what Go's and Java's clients can do
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.keepalive_time_ms"] == 60_000
    assert not any("connection_age" in name for name in options)
