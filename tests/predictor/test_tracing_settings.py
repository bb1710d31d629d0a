"""OpenTelemetry's own variables."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from engine.errors import ConfigError
from predictor.tracing import FILE_VARIABLES, SAMPLERS, RequestTracer
from tests.certificates import Authority
from tests.otlp_collector import Collector, collecting, one
from tests.predictor.edge_app import SPAN_ID, TRACE_ID, edge_app, traceparent


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


async def test_a_collector_may_want_tls_and_a_clients_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("server"), authority.issue("client")
    pairs = [(server.key.read_bytes(), server.cert.read_bytes())]
    credentials = grpc.ssl_server_credentials(pairs, authority.ca.read_bytes(), require_client_auth=True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(authority.ca))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(client.key))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(client.cert))
    with collecting(credentials) as collector:
        assert collector.grpc_url.startswith("https://")
        tracer = RequestTracer.start(collector.grpc_url)
        async with edge_app(listeners=[tracer]) as app:
            await app.client.complete()
        tracer.close()
        assert one(collector.servers).name == "POST /v1/completions"


@pytest.mark.parametrize("variable", FILE_VARIABLES)
def test_a_certificate_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for path in (tmp_path / "none.pem", tmp_path):
        monkeypatch.setenv(variable, str(path))
        with pytest.raises(ConfigError, match=f"{variable} must name a file that can be read"):
            RequestTracer.start("https://127.0.0.1:1")


async def test_a_service_name_among_the_resource_attributes_stands(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=llm-b")
    tracer = RequestTracer.start(collector.grpc_url)
    async with edge_app(listeners=[tracer]) as server:
        await server.client.complete()
    tracer.close()
    assert one(collector.servers).resource["service.name"] == "llm-b"


async def test_a_service_name_of_something_else_does_not_stand_for_ours(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "peer.service.name=other")
    tracer = RequestTracer.start(collector.grpc_url)
    async with edge_app(listeners=[tracer]) as server:
        await server.client.complete()
    tracer.close()
    resource = one(collector.servers).resource
    assert (resource["service.name"], resource["peer.service.name"]) == ("pagedserve", "other")


@pytest.mark.parametrize(("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_SAMPLER", "always_off")])
async def test_without_spans_no_line_has_a_spans_id(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    tracer = RequestTracer.start(collector.grpc_url)
    async with edge_app(listeners=[tracer]) as server:
        await server.client.complete()
        await server.client.post("/v1/completions", {"prompt": "Hi"}, {"traceparent": traceparent()})
        ids = [(request.trace_id, request.span_id) for request in server.ended.requests]
    tracer.close()
    assert ids == [(None, None), (TRACE_ID, None)]
    assert collector.spans == []


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


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "carrier-pigeon")
    with pytest.raises(ConfigError, match=f"^{variable} must be one of grpc, http/protobuf, got 'carrier-pigeon'"):
        RequestTracer.start("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "999999"),
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
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "a whole number above 0, got 'many'"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "a whole number above 0, got '-1'"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0", "a whole number above 0, got '0'"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5s", "a whole number above 0, got '5s'"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1.5", r"a whole number above 0, got '1\.5'"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "x", "a whole number above 0, got 'x'"),
    ],
)
def test_a_variable_that_the_sdk_would_replace_by_its_default_or_not_name_is_refused(
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
