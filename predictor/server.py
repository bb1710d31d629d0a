"""Puts the server together: the one place that knows every part."""

from __future__ import annotations

import errno
import functools
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, disable_created_metrics

from engine.client import AsyncEngine
from engine.errors import ConfigError
from engine.metrics import EngineMetrics
from engine.metrics_aliases import METRICS_ALIASES, Aliases
from engine.metrics_process import EngineProcessCollector
from predictor import health, routes_metrics, routes_models, routes_tokenize
from predictor.admission import Admission
from predictor.api_keys import ApiKeys
from predictor.config import ServerConfig
from predictor.console import Access
from predictor.edge_grpc import GrpcEdge
from predictor.edge_http import HttpEdge, route_paths
from predictor.guard import GrpcGuard, HttpGuard
from predictor.head_requests import add_head
from predictor.http_errors import add_exception_handlers
from predictor.kserve_adapter import KServeHost, mount
from predictor.lifecycle import Lifecycle
from predictor.logs import configure_logging, on_engine_line, writer_to
from predictor.model import PagedModel
from predictor.oip import rest
from predictor.oip.grpc_server import GrpcServer
from predictor.openai import routes as openai_routes
from predictor.openapi import routes as openapi_routes
from predictor.request_context import RequestEdge, RequestListener
from predictor.request_log import RequestLog
from predictor.service import REJECTION_REASONS, GenerationService
from predictor.tls import TlsFiles

if TYPE_CHECKING:
    from predictor.tracing import RequestTracer

HTTP_GRACE_SECONDS = 5

logger = logging.getLogger("predictor")


def serve(config: ServerConfig, model_class: type[PagedModel] = PagedModel) -> int:
    """Serves until a signal or the engine's death; returns the exit code.

    model_class: `PagedModel`, or a subclass with its own `preprocess` or `postprocess`.
    Raises `ConfigError` where a port is in use, a certificate, key or file of API keys cannot be used, or traces are
    asked for and cannot be had.
    """
    log = configure_logging(config.log_format)
    for flag, port in (("http_port", config.http_port), ("grpc_port", config.grpc_port)):
        check_port_free(flag, port)
    tls = None
    if config.ssl_certfile is not None and config.ssl_keyfile is not None:
        tls = TlsFiles(config.ssl_certfile, config.ssl_keyfile, config.ssl_client_ca)
    keys = ApiKeys(config.api_key, config.api_key_file)
    # NOTE: the time at which a counter was made, as a series of its own, doubles the counters and serves nobody here.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    metrics = EngineMetrics(config.model_name, registry, rejection_reasons=REJECTION_REASONS)
    engine = AsyncEngine(
        config.engine,
        metrics,
        max_stream_buffer=config.max_stream_buffer,
        on_log_line=functools.partial(on_engine_line, log),
    )
    registry.register(EngineProcessCollector(config.model_name, lambda: engine.pid))
    service = build_service(config, engine, metrics)
    model = model_class(service)
    guard = functools.partial(HttpGuard, keys=keys) if keys else None
    routers = build_routers(service, model, registry, METRICS_ALIASES[config.metrics_aliases])
    edge = build_edge(config, start_tracing(config))
    mount(routers, add_exception_handlers, guard, functools.partial(HttpEdge, edge=edge, paths=route_paths(routers)))
    host = KServeHost(
        http_port=config.http_port, grace_period=HTTP_GRACE_SECONDS, tls_context=tls.http_context if tls else None
    )
    grpc = GrpcServer(
        service,
        model,
        config.grpc_port,
        max_message_length=config.grpc_max_message_length,
        credentials=tls.grpc_credentials() if tls else None,
        interceptors=[GrpcEdge(edge), *([GrpcGuard(keys)] if keys else [])],
    )
    access = Access(
        tls=tls is not None, client_certificates=bool(tls and tls.wants_client_certificates), api_keys=bool(keys)
    )

    def end_now(code: int) -> None:
        log.flush()
        os._exit(code)

    lifecycle = Lifecycle(
        engine,
        service,
        host,
        grpc,
        drain_timeout=config.drain_timeout,
        access=access,
        end_now=end_now,
        announce=logger.info if config.log_format == "json" else writer_to(sys.stdout).write_line,
    )
    try:
        host.run(model, lifecycle.run)
    finally:
        edge.close()
    return lifecycle.exit_code


def start_tracing(config: ServerConfig) -> RequestTracer | None:
    """The tracer, where traces are asked for. Raises `ConfigError` where they cannot be had."""
    if config.otlp_traces_endpoint is None:
        return None
    try:
        # NOTE: OpenTelemetry's SDK is an extra, and takes time and memory: nothing imports it unless it is asked for.
        from predictor.tracing import RequestTracer
    except ImportError as error:
        raise ConfigError(
            f"--otlp_traces_endpoint needs the extra tracing ({error.name} is missing): "
            "pip install '.[tracing]' in a checkout of pagedserve"
        ) from None
    return RequestTracer.start(config.otlp_traces_endpoint)


def build_edge(config: ServerConfig, tracer: RequestTracer | None) -> RequestEdge:
    """Where requests begin and end, with those that hear of it."""
    # NOTE: the tracer first, as the log shows the ids that it gives.
    listeners: list[RequestListener] = [] if tracer is None else [tracer]
    if config.request_log:
        listeners.append(RequestLog(config.request_log_rate))
    return RequestEdge(listeners, keeps_prompts=config.request_log and config.log_prompts)


def build_service(config: ServerConfig, engine: AsyncEngine, metrics: EngineMetrics) -> GenerationService:
    """The door to `engine`, bounded as `config` says."""
    admission = Admission(
        engine, max_waiting_requests=config.max_waiting_requests, max_waiting_tokens=config.max_waiting_tokens
    )
    return GenerationService(
        engine,
        admission,
        model_name=config.model_name,
        aliases=tuple(alias for alias in config.served_model_aliases if alias != config.model_name),
        stall_timeout=config.stall_timeout,
        max_body_size=config.max_body_size,
        on_rejected=metrics.on_rejected,
    )


def build_routers(
    service: GenerationService, model: PagedModel, registry: CollectorRegistry, aliases: Aliases | None = None
) -> list[APIRouter]:
    """Every HTTP route of the server."""
    routers = [
        health.build_router(service),
        rest.build_router(service, model),
        openai_routes.build_router(service),
        routes_models.build_router(service, model),
        routes_tokenize.build_router(service),
        routes_metrics.build_router(registry, aliases),
        openapi_routes.build_router(service),
    ]
    add_head(routers)
    return routers


def check_port_free(flag: str, port: int) -> None:
    """Raises `ConfigError` where `port` cannot be listened to."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  what the server itself binds
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise ConfigError(f"port {port} {reason}; choose another one with --{flag}") from None
