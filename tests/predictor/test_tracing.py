"""The spans of requests, as a collector gets them."""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.metrics import RequestRecord
from predictor.request_context import RequestContext, RequestEdge
from predictor.tracing import MAX_TRACED_PROMPTS, RequestTracer
from tests.otlp_collector import Collector, one
from tests.predictor.edge_app import SPAN_ID, TRACE_ID, edge_app, infer_message, told, traceparent

REPOSITORY = Path(__file__).parents[2]
MARKER = "sesame"


async def test_a_completion_is_a_server_span_with_its_stages(collector: Collector, tracer: RequestTracer) -> None:
    before = time.time_ns()
    async with edge_app(listeners=[tracer]) as server:
        body = {"model": "org/alias", "prompt": MARKER, "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 3}
        headers = {"traceparent": traceparent(), "tracestate": "vendor=1", "baggage": "user=1", "x-request-id": "r1"}
        await server.client.post("/v1/completions", body, headers)
        request = server.ended.last
    tracer.close()
    span = one(collector.servers)
    assert (span.name, span.trace_id, span.parent_id) == ("POST /v1/completions", TRACE_ID, SPAN_ID)
    assert (span.status, span.trace_state) == ("UNSET", "vendor=1")
    assert before <= span.start <= span.end <= time.time_ns()
    assert (request.trace_id, request.span_id) == (span.trace_id, span.span_id)
    assert (
        span.attributes.items()
        >= {
            "http.request.method": "POST",
            "http.route": "/v1/completions",
            "http.response.status_code": 200,
            "url.scheme": "http",
            "network.protocol.version": "1.1",
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "pagedserve",
            "gen_ai.request.model": "org/alias",
            "gen_ai.response.model": "org/alias",
            "gen_ai.request.max_tokens": 4,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 0.9,
            "gen_ai.request.seed": 3,
            "gen_ai.response.id": "cmpl-r1",
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.usage.input_tokens": len(MARKER),
            "gen_ai.usage.output_tokens": 4,
            "pagedserve.request_id": "r1",
            "pagedserve.cached_tokens": 0,
        }.items()
    )
    assert span.attributes["pagedserve.time_to_first_token"] >= 0
    assert "error.type" not in span.attributes
    stages = collector.children(span)
    assert [stage.name for stage in stages] == ["receive", "queue", "prefill", "decode"]
    assert {stage.kind for stage in stages} == {"INTERNAL"}
    assert [stage.start for stage in stages[1:]] == [stage.end for stage in stages[:-1]]
    assert stages[0].start == span.start
    assert stages[-1].end <= span.end
    assert one([stage for stage in stages if stage.name == "decode"]).attributes["gen_ai.usage.output_tokens"] == 4
    assert MARKER.encode() not in b"".join(collector.raw)
    assert span.resource["service.name"] == "pagedserve"
    assert "service.version" in span.resource


async def test_without_a_parent_a_request_begins_a_trace(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(listeners=[tracer]) as server:
        for header in ({}, {"traceparent": "nonsense"}, {"traceparent": f"00-{'0' * 32}-{SPAN_ID}-01"}):
            await server.client.post("/v1/completions", {"prompt": "Hi"}, header)
    tracer.close()
    assert {span.parent_id for span in collector.servers} == {""}
    assert len({span.trace_id for span in collector.servers}) == 3


async def test_an_unsampled_parent_exports_nothing(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(listeners=[tracer]) as server:
        await server.client.post("/v1/completions", {"prompt": "Hi"}, {"traceparent": traceparent("00")})
        await server.grpc.call("ModelInfer", infer_message(), metadata=(("traceparent", traceparent("00")),))
        await told(server, 2)
        assert {request.trace_id for request in server.ended.requests} == {TRACE_ID}
        assert {request.span_id for request in server.ended.requests} == {None}, "there is no such span"
    tracer.close()
    assert collector.spans == []


async def test_a_chat_and_a_stream(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(listeners=[tracer]) as server:
        body = {"messages": [{"role": "user", "content": MARKER}], "stream": True, "n": 2, "max_tokens": 3}
        await server.client.post("/v1/chat/completions", body, {"traceparent": traceparent()})
    tracer.close()
    span = one(collector.servers)
    assert (span.name, span.parent_id) == ("POST /v1/chat/completions", SPAN_ID)
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert span.attributes["gen_ai.request.choice.count"] == 2
    assert span.attributes["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert span.attributes["gen_ai.response.id"].startswith("chatcmpl-")
    assert MARKER.encode() not in b"".join(collector.raw)


async def test_each_prompt_has_its_stages_up_to_a_bound(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(listeners=[tracer]) as server:
        await server.client.complete(["Hi"] * (MAX_TRACED_PROMPTS + 5), max_tokens=1)
    tracer.close()
    span = one(collector.servers)
    assert span.attributes["pagedserve.num_prompts"] == MAX_TRACED_PROMPTS + 5
    assert span.attributes["gen_ai.usage.output_tokens"] == MAX_TRACED_PROMPTS + 5
    decodes = collector.named("decode")
    assert sorted(stage.attributes["pagedserve.prompt"] for stage in decodes) == list(range(MAX_TRACED_PROMPTS))


async def test_preemptions_are_events_of_the_stage_in_which_they_were(
    collector: Collector, tracer: RequestTracer
) -> None:
    request = RequestContext("r", "http", "POST", RequestEdge(), route="/v1/completions", status=200, num_prompts=2)
    start = request.start_time
    request.records = [
        RequestRecord(
            *("length", start, start + 1, start + 3, start + 9, 4, 5),
            num_preemptions=3,
            preempted_times=(start + 2, start + 4, start + 6),
            resumed_times=(start + 2.5, start + 5),
        ),
        RequestRecord("length", start, start + 1, start + 3, start + 9, 4, 5),
    ]
    request.end_time = start + 10
    tracer.on_request_ended(request)
    tracer.close()
    span = one(collector.servers)
    assert span.attributes["pagedserve.num_preemptions"] == 3
    told_of = {
        (stage.name, stage.attributes.get("pagedserve.prompt")): [
            (name, round((moment - span.start) / 1e9, 3)) for name, moment in stage.events
        ]
        for stage in collector.children(span)
    }
    assert {stage: events for stage, events in told_of.items() if events} == {
        ("prefill", 0): [("preempted", 2.0), ("resumed", 2.5)],
        ("decode", 0): [("preempted", 4.0), ("resumed", 5.0), ("preempted", 6.0)],
    }


async def test_no_client_can_make_the_exporter_or_the_sdk_log(
    collector: Collector, tracer: RequestTracer, caplog: pytest.LogCaptureFixture
) -> None:
    """A number beyond 64 bits, states that are malformed, double, too many or too long, a parent that is too long."""
    states = [MARKER, "a=1,a=2", ",".join(f"k{number}=1" for number in range(40)), "a=" + "v" * 10_000]
    async with edge_app(listeners=[tracer]) as server:
        for number, state in enumerate(states):
            body = {"model": "model", "prompt": "Hi", "max_tokens": 10 ** (min(number, 2) * 15)}
            await server.client.post("/v1/completions", body, {"traceparent": traceparent(), "tracestate": state})
        later = {"traceparent": f"cc-{traceparent()[3:]}-{'x' * 1000}"}
        await server.client.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1}, later)
    tracer.close()
    assert [span.parent_id for span in collector.servers] == [SPAN_ID] * 4 + [""]
    asked = [span.attributes["gen_ai.request.max_tokens"] for span in collector.servers]
    assert asked == [1, 10**15, 2**63 - 1, 2**63 - 1, 1]
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_grpc_requests_and_the_messages_of_a_stream(collector: Collector, tracer: RequestTracer) -> None:
    metadata = (("traceparent", traceparent()),)
    async with edge_app(listeners=[tracer]) as server:
        await server.grpc.call("ModelInfer", infer_message(MARKER.encode()), metadata=metadata)

        async def messages() -> AsyncIterator[Any]:
            yield infer_message(MARKER.encode(), stream=True)
            yield infer_message(b"")

        assert [response async for response in server.grpc.stream(messages(), metadata=metadata)]
        await told(server, 3)
    tracer.close()
    assert {(span.trace_id, span.parent_id) for span in collector.servers} == {(TRACE_ID, SPAN_ID)}
    unary = one(collector.named("inference.GRPCInferenceService/ModelInfer"))
    assert (
        unary.attributes.items()
        >= {
            "rpc.system.name": "grpc",
            "rpc.method": "inference.GRPCInferenceService/ModelInfer",
            "rpc.response.status_code": "OK",
            "network.protocol.name": "http",
            "network.protocol.version": "2",
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": "model",
            "gen_ai.response.finish_reasons": ["stop"],
        }.items()
    )
    streamed = {
        span.attributes["rpc.response.status_code"]: span
        for span in collector.named("inference.GRPCInferenceService/ModelStreamInfer")
    }
    assert streamed.keys() == {"OK", "INVALID_ARGUMENT"}
    assert [stage.name for stage in collector.children(streamed["OK"])] == ["receive", "queue", "prefill", "decode"]
    assert collector.children(streamed["INVALID_ARGUMENT"]) == []
    assert streamed["INVALID_ARGUMENT"].attributes["error.type"] == "InvalidPromptError"
    assert streamed["INVALID_ARGUMENT"].status == "UNSET"
    assert MARKER.encode() not in b"".join(collector.raw)


async def test_probes_and_scrapes_have_no_span(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(listeners=[tracer]) as server:
        for path in ("/", "/health", "/metrics", "/v2/health/ready", "/v2/models/model/ready"):
            assert (await server.client.get(path)).status == 200
        await server.grpc.call("ServerReady")
        assert (await server.client.get("/v2")).status == 200
        await told(server)
    tracer.close()
    assert one(collector.spans).name == "GET /v2"


def test_the_names_of_attributes_are_opentelemetrys() -> None:
    known: set[str] = set()
    for name in ("opentelemetry.semconv.attributes", "opentelemetry.semconv._incubating.attributes"):
        for module in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
            values = vars(importlib.import_module(module.name)).values()
            known.update(value for value in values if isinstance(value, str))
    text = (REPOSITORY / "predictor" / "tracing_attributes.py").read_text()
    used = set(re.findall(r'"((?:gen_ai|http|rpc|url|network|error|server|client)\.[\w.]+)"', text))
    assert len(used) > 25
    assert used - known == set()
