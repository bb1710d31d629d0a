"""The whole of the HTTP surface: every route is ours, and every route of KServe's is taken or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
import kserve.model_server
import pytest
from fastapi import FastAPI
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.server import RESTServer
from starlette.routing import BaseRoute, Match, Route

from predictor.http_errors import add_exception_handlers
from predictor.kserve_adapter import KServeHost, mount
from predictor.model import PagedModel
from predictor.oip.grpc_server import GrpcServer
from predictor.oip.schema import SERVICE, message_class
from predictor.server import build_routers
from tests.predictor.test_kserve_adapter import restored  # noqa: F401  a fixture
from tests.predictor.test_routes_models import Shouting

NOT_OURS: dict[str, str] = {}
"""Reachable endpoints that are not ours, by path, and why they may stay."""

DESIGNED = {
    ("GET", "/"),
    ("GET", "/v2"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/v2/models"),
    ("GET", "/v2/models/model"),
    ("GET", "/v2/models/model/versions/1"),
    ("GET", "/v2/models/model/ready"),
    ("GET", "/v2/models/model/versions/1/ready"),
    ("POST", "/v2/models/model/infer"),
    ("POST", "/v2/models/model/versions/1/infer"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/model/load"),
    ("POST", "/v2/repository/models/model/unload"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/org/alias"),
    ("POST", "/v1/models/model:predict"),
    ("POST", "/v1/models/model:explain"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/openai/v1/models"),
    ("POST", "/openai/v1/completions"),
    ("POST", "/openai/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/health"),
}


def flat(routes: list[BaseRoute]) -> Iterator[Route]:
    """Every route, those of included routers too."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from flat(included.routes)
        else:
            assert isinstance(route, Route), route
            yield route


def kserves_routes() -> list[tuple[str, str]]:
    """Method and path of every route that KServe would add."""
    app, registry = FastAPI(openapi_url=None), kserve.model_server.ModelRepository()
    server = RESTServer("kserve.model_server:app", DataPlane(registry), ModelRepositoryExtension(registry), 0)
    server._register_endpoints(app)

    def walk(routes: list[BaseRoute], prefix: str) -> Iterator[tuple[str, str]]:
        for route in routes:
            if (included := getattr(route, "original_router", None)) is not None:
                yield from walk(included.routes, prefix + route.include_context.prefix)
            else:
                for method in sorted(route.methods - {"HEAD"}):
                    path = (prefix + route.path).replace("{model_name}", "model").replace("{model_version}", "1")
                    yield method, re.sub(r"\{[^}]+\}", "x", path)

    return sorted(set(walk(app.router.routes, "")))


def endpoint_of(app: FastAPI, method: str, path: str) -> Any:
    """The endpoint that answers, or None where nobody does (404 or 405)."""
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    return next((r.endpoint for r in flat(app.router.routes) if r.matches(scope)[0] is Match.FULL), None)


def is_ours(endpoint: Any) -> bool:
    return str(endpoint.__module__).startswith("predictor.")


@pytest.mark.usefixtures("restored")
async def test_kserve_has_the_routes_that_we_think(make_app) -> None:
    known = kserves_routes()
    assert ("POST", "/v2/models/model/infer") in known
    assert ("POST", "/v2/repository/models/model/unload") in known
    assert ("POST", "/v1/models/model:explain") in known
    app = make_app().app
    for method, path in known:
        endpoint = endpoint_of(app, method, path)
        assert endpoint is not None, f"{method} {path} is neither replaced nor refused"
        assert is_ours(endpoint), f"{method} {path}"


async def test_the_surface_of_the_design_is_there(make_app) -> None:
    app = make_app().app
    missing = {(m, p) for m, p in DESIGNED if (e := endpoint_of(app, m, p)) is None or not is_ours(e)}
    assert missing == set()


@pytest.mark.usefixtures("restored")
def test_after_the_start_every_reachable_route_is_ours(make_app) -> None:
    """Walks the routes of the app that the running server serves."""
    import asyncio

    built = {}

    async def build() -> None:
        built["app"] = make_app()

    asyncio.run(build())
    parts = built["app"]
    app = mount(build_routers(parts.service, parts.model, parts.registry), add_exception_handlers)
    host = KServeHost(http_port=0, grace_period=1)
    parts.model._is_registering = True
    walked: list[Route] = []

    async def life() -> None:
        try:
            async with asyncio.timeout(60):
                await host.wait_open()
                walked.extend(flat(app.router.routes))
        finally:
            host.stop()

    host.run(parts.model, life)
    assert len(walked) >= len(DESIGNED) - 5
    strangers = [r.path for r in walked if not is_ours(r.endpoint) and r.path not in NOT_OURS]
    assert strangers == []
    assert app.user_middleware == []


async def test_overridden_handlers_work_over_grpc(make_app) -> None:
    parts = make_app(model_class=Shouting)
    assert isinstance(parts.model, PagedModel)
    server = GrpcServer(parts.service, parts.model, 0, host="127.0.0.1")
    await server.start()
    try:
        request_type, answer_type = message_class("ModelInferRequest"), message_class("ModelInferResponse")
        request = request_type(model_name="model")
        tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(b"Hi")
        request.outputs.add(name="text_output")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.unary_unary(
                f"/{SERVICE}/ModelInfer",
                request_serializer=request_type.SerializeToString,
                response_deserializer=answer_type.FromString,
            )
            answer = await call(request, timeout=60)
    finally:
        await server.stop(0)
    text = b"".join(answer.raw_output_contents) or b"".join(answer.outputs[0].contents.bytes_contents)
    assert b"HELLO" in text
