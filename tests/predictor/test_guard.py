"""Default-deny: whatever is not open by name asks for a key."""

from __future__ import annotations

import logging
import re
from typing import Any

import grpc
import pytest
from fastapi import APIRouter
from starlette.responses import JSONResponse

from predictor.api_keys import ApiKeys
from predictor.guard import MISSING, OPEN_METHODS, OPEN_PATHS, WRONG, GrpcGuard, HttpGuard
from predictor.oip.grpc_server import GrpcServer
from predictor.oip.schema import SERVICE
from tests.predictor.openai.asgi_client import Answer, Client, Exchange
from tests.predictor.test_server import flat

KEY = "sk-secret"
GOOD = {"authorization": f"Bearer {KEY}"}
BAD = {"authorization": "Bearer sk-wrong"}
OPEN_BY_DESIGN = {"/", "/health", "/v2/health/live", "/v2/health/ready", "/metrics"}


async def ask(app: Any, method: str, path: str, headers: dict[str, str] | None = None) -> Answer:
    return await Exchange(app, method, path, b"{}", {"content-type": "application/json", **(headers or {})}).done()


@pytest.fixture
def guarded(make_app: Any) -> Any:
    def build() -> Any:
        parts = make_app()
        parts.app.add_middleware(HttpGuard, keys=ApiKeys([KEY]))
        return parts.app

    return build


def paths_of(app: Any) -> list[tuple[str, str]]:
    """Method and a concrete path of every route."""
    found = []
    for route in flat(app.router.routes):
        path = re.sub(r"\{(model_name|model|name)(:path)?\}", "model", route.path)
        found += [(method, re.sub(r"\{[^}]*\}", "1", path)) for method in sorted(route.methods)]
    return found


async def test_every_route_but_the_open_ones_refuses_without_a_key(guarded: Any) -> None:
    app = guarded()
    asked = paths_of(app)
    assert len(asked) >= 30
    assert {path for _, path in asked} >= OPEN_PATHS == OPEN_BY_DESIGN
    for method, path in asked:
        status = (await ask(app, method, path)).status
        assert (status == 401) == (path not in OPEN_PATHS), f"{method} {path}: {status}"


async def test_every_route_lets_a_valid_key_in(guarded: Any) -> None:
    app = guarded()
    for method, path in paths_of(app):
        assert (await ask(app, method, path, GOOD)).status not in (401, 403), f"{method} {path}"


async def test_a_new_route_and_a_path_that_is_none_are_guarded(guarded: Any) -> None:
    app, router = guarded(), APIRouter()

    async def answer() -> JSONResponse:
        return JSONResponse({})

    router.add_api_route("/new", answer)
    app.include_router(router)
    assert (await ask(app, "GET", "/new")).status == 401
    assert (await ask(app, "GET", "/new", GOOD)).status == 200
    assert (await ask(app, "GET", "/none")).status == 401
    assert (await ask(app, "GET", "/none", GOOD)).status == 404


@pytest.mark.parametrize(
    "path", ["//", "/metrics/", "/METRICS", "/v2/health/live/", "/health/../v2/models", "/metrics;x"]
)
async def test_what_only_looks_like_an_open_path_is_guarded(guarded: Any, path: str) -> None:
    assert (await ask(guarded(), "GET", path)).status == 401


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/models", "/openai/v1/models", "/v1/models/model"]
)
@pytest.mark.parametrize("headers", [{}, BAD])
async def test_openais_error_on_its_paths(guarded: Any, path: str, headers: dict[str, str]) -> None:
    answer = await ask(guarded(), "POST", path, headers)
    assert answer.status == 401
    assert answer.json == {
        "error": {
            "message": WRONG if headers else MISSING,
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_api_key",
        }
    }


@pytest.mark.parametrize("path", ["/v2/models/model/infer", "/v1/models/model:predict", "/tokenize", "/openapi.json"])
@pytest.mark.parametrize("headers", [{}, BAD])
async def test_a_plain_error_elsewhere(guarded: Any, path: str, headers: dict[str, str]) -> None:
    answer = await ask(guarded(), "POST", path, headers)
    assert (answer.status, answer.json) == (401, {"error": WRONG if headers else MISSING})
    challenge = 'Bearer realm="pagedserve"'
    assert answer.headers["www-authenticate"] == (f'{challenge}, error="invalid_token"' if headers else challenge)


async def test_two_authorization_headers_are_none(guarded: Any) -> None:
    exchange_headers = [(b"authorization", f"Bearer {KEY}".encode())] * 2
    sent = await raw(guarded(), {"type": "http", "method": "GET", "path": "/v2", "headers": exchange_headers})
    assert sent[0]["status"] == 401


async def test_a_websocket_is_closed_and_a_lifespan_passes(guarded: Any) -> None:
    assert await raw(guarded(), {"type": "websocket", "path": "/", "headers": []}) == [
        {"type": "websocket.close", "code": 1008, "reason": ""}
    ]
    seen = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["type"])

    await HttpGuard(app, ApiKeys([KEY]))({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]


async def raw(app: Any, scope: dict[str, Any]) -> list[Any]:
    sent = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def test_an_answer_that_streams_passes_through(make_app: Any) -> None:
    parts = make_app()
    client = Client(HttpGuard(parts.app, ApiKeys([KEY])))
    body = {"model": "model", "prompt": "Hi", "stream": True}
    answer = await client.post("/v1/completions", body, GOOD)
    assert len(answer.chunks) > 3
    assert (await client.post("/v1/completions", body)).status == 401
    assert parts.engine.num_requests == 0


# --- gRPC ---


@pytest.fixture
async def grpc_server(make_app: Any) -> Any:
    parts = make_app()
    server = GrpcServer(parts.service, parts.model, 0, host="127.0.0.1", interceptors=[GrpcGuard(ApiKeys([KEY]))])
    await server.start()
    yield server
    await server.stop(0)


async def call(server: GrpcServer, method: str, metadata: Any = (), *, send: bytes | None = b"") -> grpc.StatusCode:
    """The status of a call, whatever kind of method it is."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        # NOTE: the request goes out with the call: grpc.aio reports a write that comes after a refusal as INTERNAL.
        if send is None:
            stream = channel.stream_stream(method)(metadata=metadata, timeout=60)
        else:
            stream = channel.unary_stream(method)(send, metadata=metadata, timeout=60)
        try:
            while await stream.read() is not grpc.aio.EOF:
                if method.endswith("/Watch"):  # which never ends by itself
                    return grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await stream.code()


async def test_every_method_but_the_open_ones_refuses_without_a_key(grpc_server: GrpcServer) -> None:
    methods = {f"/{service}/{name}" for service, names in grpc_server.services().items() for name in names}
    assert len(methods) >= 12
    assert methods > OPEN_METHODS
    assert any("reflection" in method for method in methods)
    for method in sorted(methods):
        for metadata in ((), (("authorization", "Bearer sk-wrong"),), (("authorization", KEY),)):
            refused = await call(grpc_server, method, metadata) is grpc.StatusCode.UNAUTHENTICATED
            assert refused == (method not in OPEN_METHODS), method


async def test_every_method_lets_a_valid_key_in(grpc_server: GrpcServer) -> None:
    methods = {f"/{service}/{name}" for service, names in grpc_server.services().items() for name in names}
    for method in sorted(methods):
        code = await call(grpc_server, method, (("authorization", f"Bearer {KEY}"),))
        assert code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED) or "Repository" in method


async def test_a_method_that_is_none_is_guarded_and_a_refusal_reads_nothing(grpc_server: GrpcServer) -> None:
    assert await call(grpc_server, "/other.Service/Method") is grpc.StatusCode.UNAUTHENTICATED
    good = (("authorization", f"Bearer {KEY}"),)
    assert await call(grpc_server, "/other.Service/Method", good) is grpc.StatusCode.UNIMPLEMENTED
    assert await call(grpc_server, f"/{SERVICE}/ModelInfer", send=None) is grpc.StatusCode.UNAUTHENTICATED


async def test_two_authorization_entries_are_none(grpc_server: GrpcServer) -> None:
    twice = (("authorization", f"Bearer {KEY}"),) * 2
    assert await call(grpc_server, f"/{SERVICE}/ServerMetadata", twice) is grpc.StatusCode.UNAUTHENTICATED


async def test_no_key_is_logged(grpc_server: GrpcServer, guarded: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await call(grpc_server, f"/{SERVICE}/ServerMetadata", (("authorization", f"Bearer {KEY}-x"),))
    await ask(guarded(), "GET", "/v2", {"authorization": f"Bearer {KEY}-x"})
    assert KEY not in caplog.text
