"""The server's two doors with their edges, over the scripted engine."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from predictor.admission import Admission
from predictor.api_keys import ApiKeys
from predictor.edge_grpc import GrpcEdge
from predictor.edge_http import HttpEdge, route_paths
from predictor.guard import GrpcGuard, HttpGuard
from predictor.http_errors import add_exception_handlers
from predictor.model import PagedModel
from predictor.oip.grpc_server import GrpcServer
from predictor.oip.schema import message_class
from predictor.request_context import RequestContext, RequestEdge, RequestListener
from predictor.server import build_routers
from predictor.service import GenerationService
from tests.fake_engine import FakeEngine
from tests.predictor.oip.conftest import GrpcClient, until
from tests.predictor.openai.asgi_client import Client

TRACE_ID, SPAN_ID = "ab" * 16, "cd" * 8


def traceparent(flags: str = "01") -> str:
    return f"00-{TRACE_ID}-{SPAN_ID}-{flags}"


@dataclass
class Ended:
    """A listener that keeps what it hears."""

    requests: list[RequestContext] = field(default_factory=list)

    def on_request_ended(self, request: RequestContext) -> None:
        self.requests.append(request)

    def close(self) -> None:
        """Nothing is held."""

    @property
    def last(self) -> RequestContext:
        return self.requests[-1]


@dataclass
class EdgeApp:
    engine: Any
    app: FastAPI
    client: Client
    grpc: GrpcClient
    ended: Ended
    service: GenerationService


@asynccontextmanager
async def edge_app(
    engine: Any = None,
    *,
    listeners: Sequence[RequestListener] = (),
    keeps_prompts: bool = False,
    key: str | None = None,
    max_waiting_requests: int = 512,
    model_class: type[PagedModel] = PagedModel,
) -> AsyncIterator[EdgeApp]:
    """Every route and method, as `serve` mounts them. What ended is in `ended`, after `listeners` have heard of it."""
    engine = engine or FakeEngine()
    ended = Ended()
    edge = RequestEdge([*listeners, ended], keeps_prompts=keeps_prompts)
    admission = Admission(engine, max_waiting_requests=max_waiting_requests, max_waiting_tokens=None)
    service = GenerationService(engine, admission, model_name="model", aliases=("org/alias",))
    model = model_class(service)
    model.start()
    app = FastAPI(openapi_url=None)
    routers = build_routers(service, model, CollectorRegistry())
    for router in routers:
        app.include_router(router)
    add_exception_handlers(app)
    keys = ApiKeys((key,), None) if key else None
    if keys:
        app.add_middleware(functools.partial(HttpGuard, keys=keys))
    app.add_middleware(functools.partial(HttpEdge, edge=edge, paths=route_paths(routers)))
    server = GrpcServer(
        service,
        model,
        0,
        host="127.0.0.1",
        interceptors=[GrpcEdge(edge), *([GrpcGuard(keys)] if keys else [])],
    )
    await server.start()
    grpc = GrpcClient(server.port)
    try:
        yield EdgeApp(engine, app, Client(app), grpc, ended, service)
    finally:
        await grpc.channel.close()
        await server.stop(0)


async def told(server: EdgeApp, count: int = 1) -> None:
    """Waits until so many requests have ended."""
    await until(lambda: len(server.ended.requests) == count)


def infer_message(prompt: bytes = b"Hi", *, stream: bool = False, **more: Any) -> Any:
    """A ModelInferRequest of one prompt."""
    message = message_class("ModelInferRequest")(model_name="model", **more)
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(prompt)
    if stream:
        flag = message.inputs.add(name="stream", datatype="BOOL", shape=[1])
        flag.contents.bool_contents.append(True)
    return message
