"""A gRPC client that goes away, on the real server: its request is aborted within a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from predictor.oip.schema import SERVICE, ModelInferRequest, message_class
from tests.e2e.server import Server, until

WITHIN_SECONDS = 5.0
"""Five times the promise."""


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


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ModelStreamInfer, token by token"])
def test_a_grpc_client_that_goes_away_aborts_its_request(
    tiny_server: Server, channel: grpc.Channel, method: str, how: str
) -> None:
    aborted = tiny_server.metric("requests_total", finish_reason="abort")
    timeout = 0.5 if how == "deadline" else None
    call: Any
    if method == "ModelInfer":
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer").future(endless(stream=False), timeout=timeout)
    else:
        answer = message_class("ModelStreamInferResponse")
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer", response_deserializer=answer.FromString)
        call = stream(iter([endless(stream="token" in method)]), timeout=timeout)
        if "token" in method:
            assert next(call).infer_response.id == "1"
    until(lambda: tiny_server.metric("requests_running") == 1, "the request to run", WITHIN_SECONDS)
    if how == "cancel":
        call.cancel()
    code = grpc.StatusCode.CANCELLED if how == "cancel" else grpc.StatusCode.DEADLINE_EXCEEDED
    until(
        lambda: tiny_server.metric("requests_total", finish_reason="abort") == aborted + 1, "the abort", WITHIN_SECONDS
    )
    until(lambda: tiny_server.metric("requests_running") == 0, "no request to run", WITHIN_SECONDS)
    assert call.code() is code
