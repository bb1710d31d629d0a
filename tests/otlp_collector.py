"""An OpenTelemetry collector within the test: takes spans by OTLP over gRPC and over HTTP, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class Received:
    """A span as it came: ids in hexadecimal, times in nanoseconds since 1970, the status by name.

    events: their names and times.
    """

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    status: str
    description: str
    attributes: dict[str, Any]
    trace_state: str
    events: list[tuple[str, int]]
    resource: dict[str, Any]

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


@dataclass
class Collector:
    """grpc_url, http_url: where it listens. headers: of every export. Fails those by gRPC while `is_failing`."""

    grpc_url: str = ""
    http_url: str = ""
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    is_failing: bool = False
    num_failed: int = 0

    def take(self, request: Any, headers: dict[str, str]) -> None:
        self.headers.append(headers)
        self.raw.append(request.SerializeToString())
        for of_resource in request.resource_spans:
            resource = _attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                self.spans += [_received(span, resource) for span in of_scope.spans]

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: Received) -> list[Received]:
        """In order of their start."""
        found = [span for span in self.spans if span.parent_id == parent.span_id and span.trace_id == parent.trace_id]
        return sorted(found, key=lambda span: (span.start, span.end))

    @property
    def servers(self) -> list[Received]:
        """The spans of the kind server."""
        return [span for span in self.spans if span.kind == "SERVER"]


def one(spans: list[Received]) -> Received:
    """The only one."""
    assert len(spans) == 1, [span.name for span in spans]
    return spans[0]


class _Service(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> Any:
        if self._collector.is_failing:
            self._collector.num_failed += 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "on purpose")
        self._collector.take(request, dict(context.invocation_metadata()))
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def collecting(credentials: grpc.ServerCredentials | None = None) -> Iterator[Collector]:
    """A collector on ports of the system's choice. credentials: for TLS over gRPC."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            collector.take(request, {name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Service(collector), server)
    if credentials is None:
        collector.grpc_url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        collector.grpc_url = f"https://127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.http_url = f"http://127.0.0.1:{http.server_address[1]}/v1/traces"
    serving = threading.Thread(target=http.serve_forever, daemon=True)
    server.start()
    serving.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()
        http.shutdown()
        serving.join()
        http.server_close()


def _received(span: Any, resource: dict[str, Any]) -> Received:
    kinds = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}
    return Received(
        span.name,
        kinds[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {0: "UNSET", 1: "OK", 2: "ERROR"}[span.status.code],
        span.status.message,
        _attributes(span.attributes),
        span.trace_state,
        [(event.name, event.time_unix_nano) for event in span.events],
        resource,
    )


def _attributes(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
