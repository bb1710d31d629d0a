"""The spans of requests, as a collector gets them."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine.errors import ConfigError
from predictor.request_context import RequestContext, RequestEdge
from predictor.tracing import CLOSE_SECONDS, MAX_TRACED_PROMPTS, SAMPLERS, RequestTracer
from tests.fake_engine import FakeEngine
from tests.otlp_collector import Collector, Received, collecting
from tests.predictor.edge_app import SPAN_ID, TRACE_ID, EdgeApp, edge_app, infer_message, traceparent
from tests.predictor.oip.conftest import until

REPOSITORY = Path(__file__).parents[2]
MARKER = "sesame"


@pytest.fixture(scope="module")
def running() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def collector(running: Collector) -> Collector:
    """The module's, with nothing in it."""
    running.spans.clear()
    running.headers.clear()
    running.raw.clear()
    running.is_failing = False
    return running


@pytest.fixture
def tracer(collector: Collector) -> Iterator[RequestTracer]:
    made = RequestTracer.start(collector.grpc_url)
    yield made
    made.close()


def one(spans: list[Received]) -> Received:
    assert len(spans) == 1, [span.name for span in spans]
    return spans[0]


async def told(server: EdgeApp, count: int = 1) -> None:
    await until(lambda: len(server.ended.requests) == count)


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


async def test_no_client_can_make_the_exporter_or_the_sdk_log(
    collector: Collector, tracer: RequestTracer, caplog: pytest.LogCaptureFixture
) -> None:
    """A number beyond 64 bits, and states that are malformed, double, or too many."""
    states = [MARKER, "a=1,a=2", ",".join(f"k{number}=1" for number in range(40))]
    async with edge_app(listeners=[tracer]) as server:
        for number, state in enumerate(states):
            body = {"model": "model", "prompt": "Hi", "max_tokens": 10 ** (number * 15)}
            await server.client.post("/v1/completions", body, {"traceparent": traceparent(), "tracestate": state})
    tracer.close()
    assert [span.parent_id for span in collector.servers] == [SPAN_ID] * 3
    asked = [span.attributes["gen_ai.request.max_tokens"] for span in collector.servers]
    assert asked == [1, 10**15, 2**63 - 1]
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
    assert span.attributes["gen_ai.response.finish_reasons"] == ["abort"]
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


async def test_probes_and_scrapes_have_no_span(collector: Collector, tracer: RequestTracer) -> None:
    async with edge_app(listeners=[tracer]) as server:
        for path in ("/", "/health", "/metrics", "/v2/health/ready", "/v2/models/model/ready"):
            assert (await server.client.get(path)).status == 200
        await server.grpc.call("ServerReady")
        assert (await server.client.get("/v2")).status == 200
        await told(server)
    tracer.close()
    assert one(collector.spans).name == "GET /v2"


async def test_opentelemetrys_variables_are_honoured(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llm-a")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=p1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=t1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    tracer = RequestTracer.start(collector.http_url)
    async with edge_app(listeners=[tracer]) as server:
        await server.client.complete()
    tracer.close()
    span = one(collector.servers)
    assert (span.resource["service.name"], span.resource["k8s.pod.name"]) == ("llm-a", "p1")
    assert (collector.headers[0]["x-tenant"], collector.headers[0]["path"]) == ("t1", "/v1/traces")


async def test_a_service_name_among_the_resource_attributes_stands(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=llm-b")
    tracer = RequestTracer.start(collector.grpc_url)
    async with edge_app(listeners=[tracer]) as server:
        await server.client.complete()
    tracer.close()
    assert one(collector.servers).resource["service.name"] == "llm-b"


async def test_a_sampler_of_roots_lets_sampled_parents_pass(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    tracer = RequestTracer.start(collector.grpc_url)
    async with edge_app(listeners=[tracer]) as server:
        await server.client.complete()
        await server.client.post("/v1/completions", {"prompt": "Hi"}, {"traceparent": traceparent()})
    tracer.close()
    assert one(collector.servers).parent_id == SPAN_ID


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
    with pytest.raises(ConfigError, match=r"must be one of grpc, http/protobuf, got 'carrier-pigeon'"):
        RequestTracer.start("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
    ],
)
def test_a_wrong_variable_is_told(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=r"a variable OTEL_\* has a wrong value"):
        RequestTracer.start("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("OTEL_TRACES_SAMPLER", "sometimes", "one of always_on, always_off"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "one of always_on, always_off"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "a whole number, got 'many'"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5s", "a whole number, got '5s'"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1.5", r"a whole number, got '1\.5'"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "x", "a whole number, got 'x'"),
    ],
)
def test_a_variable_that_the_sdk_would_replace_by_its_default_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"{variable} must be {told}"):
        RequestTracer.start("http://127.0.0.1:1")


@pytest.mark.parametrize("share", ["half", "1.5", "-0.1", "nan"])
def test_a_share_that_is_none_is_refused_where_the_sampler_takes_one(
    monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
    RequestTracer.start("http://127.0.0.1:1").close()
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "ParentBased_TraceIdRatio")
    with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1"):
        RequestTracer.start("http://127.0.0.1:1")


def test_the_samplers_are_those_of_the_sdk(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in SAMPLERS:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
        RequestTracer.start("http://127.0.0.1:1").close()
    assert caplog.records == []


async def test_a_collector_that_fails_hurts_no_request(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.is_failing = True
    tracer = RequestTracer.start(collector.grpc_url)
    async with edge_app(listeners=[tracer]) as server:
        for _ in range(20):
            assert (await server.client.complete()).status == 200
    tracer.close()
    assert collector.spans == []


def test_a_collector_that_is_not_there_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    tracer = RequestTracer.start("http://127.0.0.1:9")
    edge = RequestEdge([tracer])
    with edge.handling(RequestContext("r", "http", "GET", edge, status=200)):
        pass
    begun = time.monotonic()
    tracer.close()
    assert time.monotonic() - begun < 5 * CLOSE_SECONDS


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


OFF = """
import sys
import predictor.server
from predictor.config import ServerConfig
from predictor.server import build_edge, start_tracing
from engine.config import EngineConfig
config = ServerConfig(engine=EngineConfig.from_kwargs(model_dir="nowhere"))
build_edge(config, start_tracing(config))
print(sorted({".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("opentelemetry.")}))
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )


def test_off_imports_nothing_of_opentelemetry_but_the_api_that_fastapi_has() -> None:
    result = python(OFF)
    assert result.returncode == 0, result.stderr
    assert "opentelemetry.trace" in result.stdout, "fastapi imports the API"
    for name in ("sdk", "exporter", "proto", "semconv"):
        assert f"opentelemetry.{name}" not in result.stdout


def test_without_the_extra_the_server_says_what_to_install() -> None:
    result = python(
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from predictor.__main__ import main\n"
        "sys.exit(main(['--otlp_traces_endpoint', 'http://c:4317', '--http_port', '0', '--grpc_port', '0',"
        " '--model_dir', 'nowhere']))"
    )
    assert result.returncode == 1
    assert "--otlp_traces_endpoint needs the extra tracing" in result.stderr
    assert "pip install '.[tracing]'" in result.stderr
