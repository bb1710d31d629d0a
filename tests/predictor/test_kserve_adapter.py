"""Each thing that we assume of KServe's SDK beyond its documented surface, one test each."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import kserve.model_server
import pytest
import uvicorn
from fastapi import APIRouter
from kserve.errors import NoModelReady
from kserve.protocol.rest.server import RESTServer
from starlette.responses import JSONResponse

from predictor import kserve_adapter
from predictor.http_errors import add_exception_handlers
from predictor.http_protocol import HttpProtocol
from predictor.kserve_adapter import KServeHost, Model, ModelServer, mount
from predictor.tls import TlsFiles
from tests.certificates import Authority
from tests.sockets import reserved_port

REPOSITORY = Path(__file__).parents[2]


class SmallModel(Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("small")
        self.ready = True


@pytest.fixture
def restored() -> Iterator[None]:
    """KServe's module-global app, the loop policy and the signal handlers, as they were."""
    app = kserve.model_server.app
    state = list(app.router.routes), dict(app.exception_handlers), app.middleware_stack, list(app.user_middleware)
    signals = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)}
    yield
    app.router.routes[:], app.exception_handlers, app.middleware_stack, app.user_middleware = state
    asyncio.set_event_loop_policy(None)
    for one, handler in signals.items():
        signal.signal(one, handler)


def python(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )


def test_importing_kserve_parses_the_command_line() -> None:
    assert python("import kserve", "--http_port", "nonsense").returncode == 2


def test_our_import_shields_the_command_line_from_kserve() -> None:
    result = python(
        "import sys; import predictor.kserve_adapter; assert sys.argv[1:] == ['--http_port', 'nonsense'], sys.argv",
        "--http_port",
        "nonsense",
    )
    assert result.returncode == 0, result.stderr


def test_the_rest_server_runs_the_module_global_app() -> None:
    assert kserve.model_server.FASTAPI_APP_IMPORT_STRING == "kserve.model_server:app"
    assert isinstance(kserve.model_server.app, kserve.model_server.FastAPI)


def test_only_a_model_that_is_ready_at_the_start_is_registered() -> None:
    server = ModelServer(http_port=0, enable_grpc=False, workers=1)
    model = SmallModel()
    model.ready = False
    with pytest.raises(NoModelReady):
        server._register_and_check_atleast_one_model_is_ready([model])
    assert server.registered_models.get_model("small") is None


def test_start_is_called_and_start_engine_is_gathered_before_the_rest_server() -> None:
    server = ModelServer(http_port=0, enable_grpc=False, workers=1)
    model, calls = SmallModel(), []
    model.engine = True
    model.start = lambda: calls.append("start")

    async def start_engine() -> None:
        """Never run here."""

    model.start_engine = start_engine
    server._register_and_check_atleast_one_model_is_ready([model])
    assert calls == ["start"]
    assert server.registered_models.get_model("small") is model
    assert len(server.servers) == 1
    assert server.servers[0].cr_code is start_engine.__code__
    server.servers[0].close()


def test_the_rest_server_adds_kserves_routes_by_create_application_when_it_starts() -> None:
    source = inspect.getsource(RESTServer.start)
    assert "self.create_application()" in source
    assert "self._server.serve()" in source
    for method in ("_add_middlewares", "_register_endpoints", "_add_exception_handlers"):
        assert f"self.{method}(app)" in inspect.getsource(RESTServer.create_application)


def test_setting_up_the_event_loop_is_a_method_that_start_calls() -> None:
    source = inspect.getsource(ModelServer.start)
    assert "self.setup_event_loop()" in source
    assert "asyncio.run(self._serve())" in source


def test_uvicorn_closes_its_listener_on_the_signals_that_it_captures() -> None:
    assert "self.capture_signals()" in inspect.getsource(uvicorn.Server.serve)
    assert uvicorn.server.HANDLED_SIGNALS == (signal.SIGINT, signal.SIGTERM)


def test_uvicorn_says_to_applications_that_it_speaks_asgi_2_3() -> None:
    """Below 2.4 a send to a client that has gone raises nothing: the watcher in `disconnect` is needed."""
    from uvicorn.protocols.http import h11_impl

    assert '"spec_version": "2.3"' in inspect.getsource(h11_impl)


def test_every_constructor_argument_of_the_server_is_given() -> None:
    """What we leave out would come from the command line or the environment, as KServe reads them at import."""
    accepted = set(inspect.signature(ModelServer.__init__).parameters) - {"self"}
    source = inspect.getsource(KServeHost.__init__)
    assert {name for name in accepted if f"{name}=" not in source} == set()


def route(path: str = "/ours") -> APIRouter:
    router = APIRouter()

    async def answer() -> JSONResponse:
        return JSONResponse({"loop": type(asyncio.get_running_loop()).__module__})

    router.add_api_route(path, answer, methods=["GET"])
    return router


@pytest.mark.usefixtures("restored")
def test_the_whole_life_of_a_host() -> None:
    """Ours are the routes, the middleware and the error handlers; the loop is uvloop's; a signal is ours to handle."""
    app = mount([route()], add_exception_handlers)
    host = KServeHost(http_port=0, grace_period=1)
    model, seen = SmallModel(), SimpleNamespace(signals=[])

    async def life() -> None:
        loop = asyncio.get_running_loop()
        got_signal = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, got_signal.set)
        try:
            async with asyncio.timeout(60):
                port = await host.wait_open()
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                    seen.ours = await client.get("/ours")
                    seen.kserves = [
                        (await client.request(method, path)).status_code
                        for method, path in (
                            ("GET", "/"),
                            ("GET", "/metrics"),
                            ("GET", "/v1/models"),
                            ("POST", "/v1/models/small:predict"),
                            ("POST", "/v1/models/small:explain"),
                            ("GET", "/v2"),
                            ("GET", "/v2/health/ready"),
                            ("POST", "/v2/models/small/infer"),
                            ("POST", "/v2/repository/models/small/unload"),
                            ("GET", "/openapi.json"),
                            ("GET", "/docs"),
                        )
                    ]
                    signal.raise_signal(signal.SIGTERM)
                    await got_signal.wait()
                    seen.after_signal = (await client.get("/ours")).status_code
        finally:
            host.stop()

    host.run(model, life)
    assert seen.ours.json() == {"loop": "uvloop"}
    assert set(seen.kserves) == {404}
    assert seen.after_signal == 200
    assert app.user_middleware == []


@pytest.mark.usefixtures("restored")
def test_an_error_in_the_life_ends_the_run() -> None:
    mount([route()], add_exception_handlers)
    host = KServeHost(http_port=0, grace_period=1)

    async def life() -> None:
        raise ValueError("cannot start")

    with pytest.raises(ValueError, match="cannot start"):
        host.run(SmallModel(), life)


def test_take_over_reaches_what_it_replaces() -> None:
    host = KServeHost(http_port=0, grace_period=1)
    server: Any = host._server
    server._rest_server = RESTServer(
        "kserve.model_server:app", server.dataplane, server.model_repository_extension, 0, grace_period=1
    )
    host._take_over()
    assert not server._rest_server.config.loaded
    assert server._rest_server.config.http is HttpProtocol
    assert server._rest_server._server.capture_signals is contextlib.nullcontext
    server._rest_server.create_application()
    assert not server._rest_server._server.should_exit
    host.stop(7.5)
    assert server._rest_server._server.should_exit
    assert server._rest_server._server.config.timeout_graceful_shutdown == 7.5


def test_the_protocol_classes_are_read_when_the_config_is_loaded() -> None:
    config = uvicorn.Config("kserve.model_server:app", log_config=None)
    config.http, config.ws = HttpProtocol, "none"
    config.load()
    assert config.http_protocol_class is HttpProtocol
    assert config.ws_protocol_class is None


def test_grpc_is_not_told_to_guard_forks() -> None:
    assert kserve_adapter.os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "0"


@pytest.mark.usefixtures("restored")
def test_a_host_with_a_tls_context_speaks_https_on_the_port_it_was_given(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    mount([route()], add_exception_handlers)
    seen = SimpleNamespace()

    async def life() -> None:
        try:
            async with asyncio.timeout(60):
                assert await host.wait_open() == port
                async with httpx.AsyncClient(verify=authority.context(), timeout=60) as client:
                    seen.status = (await client.get(f"https://127.0.0.1:{port}/ours")).status_code
                async with httpx.AsyncClient(timeout=60) as client:
                    with pytest.raises(httpx.TransportError):
                        await client.get(f"http://127.0.0.1:{port}/ours")
                seen.config = host._server._rest_server.config
        finally:
            host.stop()

    with reserved_port() as port:
        host = KServeHost(http_port=port, grace_period=1, tls_context=TlsFiles(pair.cert, pair.key).http_context)
        host.run(SmallModel(), life)
    assert seen.status == 200
    assert seen.config.is_ssl  # as uvicorn's own line says https


def test_the_tls_context_is_made_by_a_factory_that_uvicorn_reads_when_it_serves() -> None:
    assert "self.ssl_context_factory(self, default_factory)" in inspect.getsource(uvicorn.Config.load)
    assert "config.load()" in inspect.getsource(uvicorn.Server._serve)


def test_kserves_own_certificate_argument_would_move_port_8080() -> None:
    server = ModelServer(http_port=8080, enable_grpc=False, workers=1, ssl_certfile="a", ssl_keyfile="b")
    assert server.http_port == 8443


async def test_a_guard_wraps_every_route(restored: None) -> None:
    seen = []

    def guard(app: Any) -> Any:
        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["path"])
            await app(scope, receive, send)

        return guarded

    app = mount([route()], add_exception_handlers, guard)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        assert (await client.get("/ours")).status_code == 200
        assert (await client.get("/none")).status_code == 404
    assert seen == ["/ours", "/none"]
