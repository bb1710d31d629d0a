"""Traces of requests, by OpenTelemetry, exported by OTLP. Imported only where they are asked for.

Everything but the collector's URL is set by OpenTelemetry's own variables: OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_MAX_QUEUE_SIZE, and so on
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
"""

from __future__ import annotations

import logging
import os
import threading
import time

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine.errors import ConfigError
from engine.metrics import package_version
from predictor.request_context import RequestContext
from predictor.tracing_attributes import request_attributes, sampler_attributes, span_name, stages, status_of

CLOSE_SECONDS = 5.0
"""What is still to be exported gets so long at the server's end."""
MAX_TRACED_PROMPTS = 16
"""Prompts of one request whose stages have spans."""
PROTOCOLS = ("grpc", "http/protobuf")
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""The first of them that is set."""
RATIO_SAMPLERS = ("traceidratio", "parentbased_traceidratio")
"""Those that take OTEL_TRACES_SAMPLER_ARG."""
SAMPLERS = ("always_on", "always_off", "parentbased_always_on", "parentbased_always_off", *RATIO_SAMPLERS)
"""What the SDK has of OpenTelemetry's samplers."""
BATCH_VARIABLES = (
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
)
FILE_VARIABLES = tuple(
    f"OTEL_EXPORTER_OTLP_{signal}{name}"
    for signal in ("", "TRACES_")
    for name in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
)
SERVICE = "pagedserve"


class RequestTracer:
    """Makes the spans of each request when it ends, as a `RequestListener`.

    A request is a span of the kind server from its arrival to its end, a child of the caller's span where the caller
    sent one, with a child for each stage: receive, queue, prefill, decode. They are handed to a bounded queue that a
    thread exports; what it cannot take, and what the collector does not, is dropped.

    NOTE: made at the end, an unsampled request costs the reading of its headers, and nothing is held while it runs. No
    call goes out from here, so nobody needs the ids of its spans before.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("pagedserve", package_version())
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def start(cls, endpoint: str) -> RequestTracer:
        """A tracer that exports to `endpoint`.

        Raises `ConfigError` for an unknown protocol or sampler, a share that is none, a size or time of the queue that
        is no whole number, a certificate or key that cannot be read, and whatever else of OTEL_* the SDK refuses. What
        the SDK passes over with a line in the log (a malformed header or resource attribute) is passed over.
        """
        _check_variables()
        # NOTE: it tells of each header `tracestate` that is malformed, in the client's words and beyond every bound.
        logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)
        resource = Resource.create({SERVICE_VERSION: package_version()})
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
        try:
            # NOTE: the provider stays ours: as the global one it would trace whatever library knows OpenTelemetry.
            provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint)))
        except ValueError as error:
            raise ConfigError(f"a variable OTEL_* has a wrong value: {error}") from error
        return cls(provider)

    def on_request_ended(self, request: RequestContext) -> None:
        # NOTE: of a header that is not fit it would tell in the log, as often as clients send one.
        has_parent = request.trace_id is not None
        parent = self._propagator.extract(request.trace_headers, Context()) if has_parent else Context()
        # NOTE: the clocks are compared anew each time, as the one of the wall may be set in between.
        epoch = time.time_ns() - time.monotonic_ns()

        def at(seconds: float) -> int:
            return epoch + int(seconds * 1e9)

        span = self._tracer.start_span(
            span_name(request),
            parent,
            SpanKind.SERVER,
            sampler_attributes(request),
            start_time=at(request.start_time),
        )
        if not span.is_recording():
            return
        ids = span.get_span_context()
        request.trace_id, request.span_id = format_trace_id(ids.trace_id), format_span_id(ids.span_id)
        span.set_attributes(request_attributes(request))
        if (status := status_of(request)) is not None:
            span.set_status(status)
        inside = set_span_in_context(span, Context())
        for stage in stages(request, MAX_TRACED_PROMPTS):
            child = self._tracer.start_span(
                stage.name, inside, SpanKind.INTERNAL, stage.attributes, start_time=at(stage.start)
            )
            for name, moment in stage.events:
                child.add_event(name, timestamp=at(moment))
            child.end(at(stage.end))
        span.end(at(request.end_time))

    def close(self) -> None:
        """Exports what is left, within `CLOSE_SECONDS`."""
        closing = threading.Thread(target=self._provider.shutdown, name="tracing-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def _check_variables() -> None:
    """Refuses what the SDK would replace by its default, with no more than a line in the log; empty is not set."""
    sampler = os.environ.get("OTEL_TRACES_SAMPLER", "").lower()
    if sampler and sampler not in SAMPLERS:
        raise ConfigError(f"OTEL_TRACES_SAMPLER must be one of {', '.join(SAMPLERS)}, got {sampler!r}")
    share = os.environ.get("OTEL_TRACES_SAMPLER_ARG", "")
    if sampler in RATIO_SAMPLERS and share and not _is_share(share):
        raise ConfigError(f"OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1, got {share!r}")
    for variable in BATCH_VARIABLES:
        text = os.environ.get(variable, "")
        if text and not _is_above_zero(text):
            raise ConfigError(f"{variable} must be a whole number above 0, got {text!r}")
    for variable in FILE_VARIABLES:
        # NOTE: of a missing one the SDK's exporter by gRPC would trust every public authority instead.
        path = os.environ.get(variable, "")
        if path and not (os.path.isfile(path) and os.access(path, os.R_OK)):
            raise ConfigError(f"{variable} must name a file that can be read, got {path!r}")


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _is_above_zero(text: str) -> bool:
    try:
        return int(text) > 0
    except ValueError:
        return False


def _exporter(endpoint: str) -> SpanExporter:
    variable = next((name for name in PROTOCOL_VARIABLES if os.environ.get(name)), PROTOCOL_VARIABLES[0])
    protocol = os.environ.get(variable) or "grpc"
    match protocol:
        case "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.exporter import InvalidCompressionValueException
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

            try:
                return GrpcExporter(endpoint)
            except InvalidCompressionValueException as error:
                raise ValueError(error) from None
        case "http/protobuf":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

            return HttpExporter(endpoint)
    raise ConfigError(f"{variable} must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
