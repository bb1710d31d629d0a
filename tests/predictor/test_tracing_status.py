"""The spans of requests that were aborted or refused, or that failed."""

from __future__ import annotations

import grpc
import pytest

from predictor.tracing import RequestTracer
from tests.fake_engine import FakeEngine
from tests.otlp_collector import Collector, one
from tests.predictor.edge_app import edge_app, infer_message, told
from tests.predictor.oip.conftest import until

MARKER = "sesame"


async def test_an_aborted_request_over_http_is_an_error(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(FakeEngine(pause_after=2), listeners=[tracer]) as server:
        exchange = server.client.open("/v1/completions", {"prompt": "Hi", "stream": True})
        await exchange.wait_for(lambda: exchange.answer.writes)
        exchange.disconnect()
        await exchange.done()
    tracer.close()
    span = one(collector.servers)
    assert (span.status, span.description) == ("ERROR", "the client went away before its answer was complete")
    assert span.attributes["error.type"] == "client_disconnected"
    assert span.attributes["gen_ai.response.finish_reasons"] == ["error"], "the conventions' word for what was cut off"
    assert [stage.name for stage in collector.children(span)] == ["receive", "queue", "prefill", "decode"]


async def test_an_aborted_request_over_grpc_is_cancelled(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(FakeEngine(admitting=False), listeners=[tracer]) as server:
        call = server.grpc.call("ModelInfer", infer_message())
        await until(lambda: server.engine.num_requests == 1)
        call.cancel()
        await told(server)
    tracer.close()
    span = one(collector.servers)
    assert span.status == "UNSET"
    assert (
        span.attributes.items()
        >= {
            "rpc.response.status_code": "CANCELLED",
            "error.type": "client_disconnected",
        }.items()
    )
    # It left while it waited: there is no later stage.
    assert [stage.name for stage in collector.children(span)] == ["receive", "queue"]


async def test_refused_requests_are_errors_in_both_protocols(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(FakeEngine(admitting=False), listeners=[tracer], max_waiting_requests=1) as server:
        waiting = server.client.open("/v1/completions", {"prompt": "Hi"})
        await until(lambda: server.engine.num_requests == 1)
        assert (await server.client.post("/v1/completions", {"prompt": "Hi"})).status == 429
        await server.grpc.refusal("ModelInfer", infer_message())
        await told(server, 2)
        waiting.disconnect()
        await waiting.done()
    tracer.close()
    refused = [span for span in collector.servers if span.attributes.get("error.type") == "OverloadedError"]
    assert {span.name for span in refused} == {
        "POST /v1/completions",
        "inference.GRPCInferenceService/ModelInfer",
    }
    assert {(span.status, span.description) for span in refused} == {("ERROR", "refused: waiting_requests")}


async def test_the_status_of_other_failures(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(FakeEngine(phase="loading"), listeners=[tracer], key="k" * 20) as server:
        key = {"authorization": "Bearer " + "k" * 20}
        await server.client.post("/v1/completions", {"prompt": "Hi"}, key)
        await server.client.post("/v1/completions", {"prompt": MARKER, "n": MARKER}, key)
        await server.client.post("/v1/completions", {"prompt": "Hi"})
        await server.client.post("/nothing", {}, key)
        with pytest.raises(grpc.aio.AioRpcError):
            await server.grpc.call("ModelInfer", infer_message(), metadata=tuple(key.items()))
        await told(server, 5)
    tracer.close()
    told_of = [
        (span.name, span.status, span.attributes.get("http.response.status_code"), span.attributes["error.type"])
        for span in sorted(collector.servers, key=lambda span: span.start)
    ]
    assert told_of == [
        ("POST /v1/completions", "ERROR", 503, "EngineLoadingError"),
        ("POST /v1/completions", "UNSET", 400, "InvalidParameterError"),
        ("POST", "UNSET", 401, "401"),
        ("POST", "UNSET", 404, "404"),
        ("inference.GRPCInferenceService/ModelInfer", "ERROR", None, "EngineLoadingError"),
    ]
    assert MARKER.encode() not in b"".join(collector.raw)


async def test_an_engine_that_dies_within_a_stream_is_an_error(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(FakeEngine(fail_after=2), listeners=[tracer]) as server:
        await server.client.post("/v1/completions", {"prompt": "Hi", "stream": True})
    tracer.close()
    span = one(collector.servers)
    assert (span.status, span.attributes["http.response.status_code"]) == ("ERROR", 200)
    assert span.attributes["error.type"] == "EngineDeadError"
