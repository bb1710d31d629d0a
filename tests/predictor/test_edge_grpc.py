"""What is known of a gRPC request at its end, and its id in the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from predictor.edge_grpc import _address
from predictor.oip.schema import message_class
from tests.fake_engine import FakeEngine
from tests.predictor.edge_app import TRACE_ID, EdgeApp, edge_app, infer_message, traceparent
from tests.predictor.oip.conftest import until

METHOD = "inference.GRPCInferenceService/ModelInfer"
STREAM = "inference.GRPCInferenceService/ModelStreamInfer"


async def told(server: EdgeApp, count: int = 1) -> Any:
    """The last of `count` requests that have ended: the client may have its answer a moment earlier."""
    await until(lambda: len(server.ended.requests) == count)
    return server.ended.last


def ids(metadata: Any) -> list[str]:
    return [value for name, value in metadata or () if name == "x-request-id"]


async def test_an_inference_is_told_and_its_id_is_trailing_metadata() -> None:
    async with edge_app() as server:
        metadata = (("x-request-id", "mine/1"), ("traceparent", traceparent()), ("tracestate", "a=1"))
        call = server.grpc.call("ModelInfer", infer_message(id="7"), metadata=metadata)
        assert (await call).id == "7"
        assert ids(await call.trailing_metadata()) == ["mine/1"]
        request = await told(server)
    assert (request.protocol, request.route, request.status, request.model) == ("grpc", METHOD, "OK", "model")
    assert (request.error_type, request.is_aborted, request.trace_id) == (None, False, TRACE_ID)
    assert request.trace_headers["tracestate"] == "a=1"
    assert request.records[0].request_id.startswith("mine/1.7.")


async def test_a_refused_request_keeps_its_id_and_retry_after() -> None:
    async with edge_app(FakeEngine(admitting=False), max_waiting_requests=1) as server:
        waiting = server.grpc.call("ModelInfer", infer_message())
        await until(lambda: server.engine.num_requests == 1)
        call = server.grpc.call("ModelInfer", infer_message(), metadata=(("x-request-id", "r1"),))
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        trailing = dict(await call.trailing_metadata())
        assert trailing["x-request-id"] == "r1"
        assert not await call.initial_metadata(), "a retry policy retries no call that has got headers (gRFC A6)"
        assert int(trailing["retry-after"]) >= 1
        request = await told(server)
        assert (request.status, request.error_type) == ("RESOURCE_EXHAUSTED", "OverloadedError")
        waiting.cancel()
        request = await told(server, 2)
        assert (request.status, request.is_aborted, request.records[0].finish_reason) == ("CANCELLED", True, "abort")


@pytest.mark.parametrize(
    ("method", "status", "error"),
    [
        ("/inference.GRPCInferenceService/ModelInfer", "INVALID_ARGUMENT", "MalformedRequestError"),
        ("/inference.GRPCInferenceService/Nothing", "UNIMPLEMENTED", "UNIMPLEMENTED"),
        ("/no.Service/Nothing", "UNIMPLEMENTED", "UNIMPLEMENTED"),
    ],
)
async def test_an_invalid_call_is_told(method: str, status: str, error: str) -> None:
    async with edge_app() as server:
        call = server.grpc.channel.unary_unary(method)(b"\xff\xff", metadata=(("x-request-id", "i1"),))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code().name == status
        assert ids(caught.value.trailing_metadata()) == ["i1"]
        request = await told(server)
        assert (request.status, request.error_type) == (status, error)


async def test_a_call_without_a_key_is_told() -> None:
    async with edge_app(key="k" * 20) as server:
        error = await server.grpc.refusal("ModelInfer", infer_message())
        assert len(ids(error.trailing_metadata())) == 1
        request = await told(server)
        assert (request.status, request.error_type) == ("UNAUTHENTICATED", "UNAUTHENTICATED")


@pytest.mark.parametrize("method", ["ServerLive", "ServerReady", "ModelReady"])
async def test_probes_are_not_told(method: str) -> None:
    async with edge_app() as server:
        request = message_class(f"{method}Request")()
        if method == "ModelReady":
            request.name = "model"
        call = server.grpc.call(method, request)
        await call
        assert len(ids(await call.trailing_metadata())) == 1
        await server.grpc.call("ModelInfer", infer_message())
        assert (await told(server)).route == METHOD


async def test_each_message_of_a_stream_is_a_request() -> None:
    async with edge_app() as server:

        async def messages() -> AsyncIterator[Any]:
            yield infer_message(id="a")
            yield infer_message(id="b", stream=True)
            yield infer_message(b"", id="c")

        metadata = (("x-request-id", "s"), ("traceparent", traceparent()))
        call = server.grpc.stream(messages(), metadata=metadata)
        assert ids(await call.initial_metadata()) == ["s"]
        responses = [response async for response in call]
        assert ids(await call.trailing_metadata()) == ["s"]
        assert {response.infer_response.id for response in responses} == {"a", "b", "c"}
        await told(server, 3)
        requests = {request.request_id: request for request in server.ended.requests}
    assert requests.keys() == {"s-1", "s-2", "s-3"}
    assert {request.route for request in requests.values()} == {STREAM}
    assert {request.trace_id for request in requests.values()} == {TRACE_ID}
    assert [requests[name].status for name in sorted(requests)] == ["OK", "OK", "INVALID_ARGUMENT"]
    assert requests["s-3"].error_type == "InvalidPromptError"
    assert requests["s-1"].records[0].request_id.startswith("s-1.a.")


async def test_a_stream_that_is_cancelled_aborts_its_messages() -> None:
    async with edge_app(FakeEngine(pause_after=1)) as server:
        done = asyncio.Event()

        async def messages() -> AsyncIterator[Any]:
            yield infer_message(stream=True)
            yield infer_message(stream=True)
            await done.wait()

        call = server.grpc.stream(messages())
        await until(lambda: server.engine.num_requests == 2)
        call.cancel()
        await told(server, 2)
        done.set()
    assert {request.status for request in server.ended.requests} == {"CANCELLED"}
    assert all(request.is_aborted for request in server.ended.requests)


async def test_a_stream_that_is_refused_before_any_message_is_told_once() -> None:
    async with edge_app(key="k" * 20) as server:

        async def messages() -> AsyncIterator[Any]:
            yield infer_message()

        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in server.grpc.stream(messages()):
                pass
        request = await told(server)
        assert (request.route, request.status) == (STREAM, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5", "10.0.0.1:5"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5", "[fe80::1%eth0]:5"),
        ("unix:/run/a", "unix:/run/a"),
    ],
)
def test_the_clients_address(peer: str, address: str) -> None:
    assert _address(peer) == address
