"""`grpc.health.v1`, with the official client's messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2

from predictor.oip import grpc_health
from predictor.oip.schema import SERVICE
from tests.fake_engine import FakeEngine
from tests.predictor.oip.test_schema import flatten, methods

health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2", reason="grpcio-health-checking is not installed")
health_pb2_grpc = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def test_the_messages_are_the_published_ones() -> None:
    published = descriptor_pb2.FileDescriptorProto()
    health_pb2.DESCRIPTOR.CopyToProto(published)
    ours = grpc_health.file_descriptor()
    assert flatten(ours.message_type) == flatten(published.message_type)
    assert methods(ours) == methods(published)
    ours_enum, their_enum = (f.message_type[1].enum_type[0] for f in (ours, published))
    assert [(v.name, v.number) for v in ours_enum.value] == [(v.name, v.number) for v in their_enum.value]


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_check_is_readiness(serve: Callable[..., Any], name: str) -> None:
    server = await serve(FakeEngine(phase="loading"))
    stub = health_pb2_grpc.HealthStub(server.grpc.channel)
    request = health_pb2.HealthCheckRequest(service=name)
    assert (await stub.Check(request)).status == NOT_SERVING
    server.engine.finish_loading()
    assert (await stub.Check(request)).status == SERVING
    server.service.start_draining()
    assert (await stub.Check(request)).status == NOT_SERVING


async def test_an_unknown_service_is_not_found(serve: Callable[..., Any]) -> None:
    server = await serve()
    stub = health_pb2_grpc.HealthStub(server.grpc.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    call = stub.Watch(health_pb2.HealthCheckRequest(service="other"))
    assert (await call.read()).status == SERVICE_UNKNOWN
    call.cancel()


async def test_watch_tells_every_change(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_health, "WATCH_SECONDS", 0.01)
    server = await serve(FakeEngine(phase="loading"))
    call = health_pb2_grpc.HealthStub(server.grpc.channel).Watch(health_pb2.HealthCheckRequest())
    async with asyncio.timeout(60):
        assert (await call.read()).status == NOT_SERVING
        server.engine.finish_loading()
        assert (await call.read()).status == SERVING
        server.engine.die()
        assert (await call.read()).status == NOT_SERVING
    call.cancel()


async def test_an_open_watch_does_not_hold_up_the_end(serve: Callable[..., Any]) -> None:
    server = await serve()
    call = health_pb2_grpc.HealthStub(server.grpc.channel).Watch(health_pb2.HealthCheckRequest())
    assert (await call.read()).status == SERVING
    async with asyncio.timeout(60):
        await server.grpc_server.stop(1000.0)
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in await call.details()
