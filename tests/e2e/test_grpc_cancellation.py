"""A gRPC client that goes away, on the real server: its request is aborted within a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from predictor.oip.schema import SERVICE, ModelInferRequest, message_class
from tests.e2e.server import Server, stopped, until

WITHIN_SECONDS = 5.0
"""Five times the promise."""
DEADLINE_SECONDS = 10.0
"""Within it a request has to come to the engine."""
METHODS = ["ModelInfer", "ModelStreamInfer", "ModelStreamInfer, token by token"]


def endless(*, stream: bool) -> bytes:
    request = ModelInferRequest(model_name="tiny", id="1")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"Hi")
    if stream:
        request.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    request.parameters["max_tokens"].int64_param = 4000
    request.parameters["ignore_eos"].bool_param = True
    return bytes(request.SerializeToString())


@pytest.fixture
def channel(tiny_server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(tiny_server.grpc_address) as channel:
        yield channel


def begin(channel: grpc.Channel, method: str, timeout: float | None = None) -> Any:
    if method == "ModelInfer":
        return channel.unary_unary(f"/{SERVICE}/ModelInfer").future(endless(stream=False), timeout=timeout)
    answer = message_class("ModelStreamInferResponse")
    stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer", response_deserializer=answer.FromString)
    return stream(iter([endless(stream="token" in method)]), timeout=timeout)


def aborts(server: Server) -> float:
    return server.metric("requests_total", finish_reason="abort")


@pytest.mark.parametrize("method", METHODS)
def test_a_grpc_client_that_cancels_aborts_its_request(tiny_server: Server, channel: grpc.Channel, method: str) -> None:
    aborted = aborts(tiny_server)
    call = begin(channel, method)
    if "token" in method:
        assert next(call).infer_response.id == "1"
    until(lambda: tiny_server.metric("requests_running") == 1, "the request to run")
    call.cancel()
    until(lambda: aborts(tiny_server) == aborted + 1, "the abort", WITHIN_SECONDS)
    until(lambda: tiny_server.metric("requests_running") == 0, "no request to run", WITHIN_SECONDS)
    assert call.code() is grpc.StatusCode.CANCELLED


def test_a_grpc_clients_deadline_aborts_its_request(tiny_server: Server, channel: grpc.Channel) -> None:
    aborted, engine_pid = aborts(tiny_server), tiny_server.engine_pid
    grpc.channel_ready_future(channel).result(60)
    calls = [begin(channel, method, DEADLINE_SECONDS) for method in METHODS]
    until(lambda: tiny_server.metric("requests_running") == len(calls), "the requests to run", DEADLINE_SECONDS)
    with stopped(engine_pid):  # no request can finish before its deadline
        until(lambda: aborts(tiny_server) == aborted + 3, "the aborts", DEADLINE_SECONDS + WITHIN_SECONDS)
    until(lambda: tiny_server.metric("requests_running") == 0, "no request to run", WITHIN_SECONDS)
    assert [call.code() for call in calls] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 3
