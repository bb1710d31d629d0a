"""Every place where we lean on KServe's SDK beyond its documented surface (0.21.0).

Each assumption has a test in tests/predictor/test_kserve_adapter.py, so that a new release shows at once what moved:

1. Importing kserve parses `sys.argv`: it is imported here, with an empty one.
2. `kserve.model_server.app` is the module-global FastAPI app that its REST server runs.
3. `ModelServer.start` registers a model only if `ready` is true then, calls its `start()`, and gathers the coroutine
   of `start_engine()` (where `engine` is true) with the REST server's, in that order.
4. `ModelServer._rest_server` exists when `start_engine` runs, and has not yet called its `create_application`, which
   adds KServe's routes, middleware and exception handlers: replaced by nothing, so that only ours are there.
5. `ModelServer.setup_event_loop` sets up a loop that never runs: replaced by nothing. `asyncio.run` makes the loop.
6. `_rest_server._server` is uvicorn's: its `capture_signals` would close the listener at SIGTERM, `startup` returns
   when the listener is open, `servers` are asyncio's, `should_exit` ends it, and open responses then get its config's
   `timeout_graceful_shutdown` seconds.
7. `_rest_server.config` is uvicorn's, and not yet loaded when `start_engine` runs: its `ssl_context_factory` then gives
   the TLS context. KServe's own `ssl_certfile` stays unset: with it port 8080 would become 8443, and its watcher of the
   files misses later changes of a mounted secret and the client CA.
8. Its `http` and `ws` are then open, too: a class given as `http` serves the connections, and "none" as `ws` leaves
   WebSockets out.
9. `app.user_middleware` is built into the app at its first call: what stands in it before then is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from predictor.http_protocol import HttpProtocol


@contextlib.contextmanager
def _empty_argv() -> Iterator[None]:
    argv, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = argv


# NOTE: the engine process is an exec, not a fork that goes on: gRPC's fork handlers have nothing to do, and say so.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

with _empty_argv():
    import kserve.model_server
    from kserve import InferInput, InferOutput, InferRequest, InferResponse, Model, ModelServer
    from kserve.errors import InvalidInput
    from kserve.predictor_config import PredictorConfig
    from kserve.protocol.infer_type import RequestedOutput

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI
    from starlette.types import ASGIApp

__all__ = [
    "InferInput",
    "InferOutput",
    "InferRequest",
    "InferResponse",
    "InvalidInput",
    "KServeHost",
    "Model",
    "RequestedOutput",
    "mount",
]

KEEP_ALIVE_SECONDS = 65


def mount(
    routers: Sequence[APIRouter],
    add_exception_handlers: Callable[[FastAPI], None],
    guard: Callable[[ASGIApp], ASGIApp] | None = None,
    edge: Callable[[ASGIApp], ASGIApp] | None = None,
) -> FastAPI:
    """KServe's app with these routes and nothing else. guard: wraps them all, unknown paths too. edge: wraps it."""
    app: FastAPI = kserve.model_server.app
    app.router.routes.clear()
    app.router.redirect_slashes = False
    app.user_middleware.clear()
    app.middleware_stack = None
    for router in routers:
        app.include_router(router)
    add_exception_handlers(app)
    if guard is not None:
        app.add_middleware(guard)
    if edge is not None:
        app.add_middleware(edge)
    return app


class KServeHost:
    """One `ModelServer` with one model, whose life is in our hands.

    grace_period: seconds that open HTTP responses get once `stop` has been called.
    tls_context: makes the context of HTTPS; without it the listener is not encrypted.
    """

    def __init__(
        self, *, http_port: int, grace_period: int, tls_context: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._tls_context = tls_context
        self._opened = asyncio.Event()
        self._server = ModelServer(
            http_port=http_port,
            grpc_port=0,
            workers=1,
            max_threads=1,
            max_asyncio_workers=None,
            registered_models=None,
            enable_grpc=False,
            enable_docs_url=False,
            enable_latency_logging=False,
            access_log_format=None,
            event_loop="auto",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            grace_period=grace_period,
            predictor_config=PredictorConfig(predictor_host=""),
            ssl_certfile=None,
            ssl_keyfile=None,
        )

    def run(self, model: Model, life: Callable[[], Awaitable[None]]) -> None:
        """Serves `model` until `life`, which runs beside the HTTP server on its event loop, has ended.

        Raises what `life` raised.
        """
        failures: list[Exception] = []

        async def start_engine() -> None:
            self._take_over()
            try:
                await life()
            except Exception as error:
                # NOTE: raised here it would cancel uvicorn in the midst of its start; it is raised once that has ended.
                failures.append(error)
            finally:
                self.stop()

        model.engine = True
        model.start_engine = start_engine
        # NOTE: `asyncio.run` makes its loop by the policy; KServe's and uvicorn's own settings come too late for that.
        asyncio.set_event_loop_policy(_uvloop_policy())
        self._server.setup_event_loop = lambda: None
        self._server.start([model])
        for failure in failures:
            raise failure

    async def wait_open(self) -> int:
        """The port, once it is listened to."""
        await self._opened.wait()
        return int(self._uvicorn.servers[0].sockets[0].getsockname()[1])

    def stop(self, grace: float | None = None) -> None:
        """Closes the listener and ends `run` once the open responses have gone out.

        grace: seconds they get, instead of those given at construction.
        """
        if grace is not None:
            self._uvicorn.config.timeout_graceful_shutdown = grace
        self._uvicorn.should_exit = True

    @property
    def _uvicorn(self) -> Any:
        return self._server._rest_server._server

    def _take_over(self) -> None:
        self._server._rest_server.create_application = lambda: None
        self._uvicorn.capture_signals = contextlib.nullcontext
        self._server._rest_server.config.http = HttpProtocol
        self._server._rest_server.config.ws = "none"
        if (tls_context := self._tls_context) is not None:
            self._server._rest_server.config.ssl_context_factory = lambda _config, _default: tls_context()
        start_up = self._uvicorn.startup

        async def startup(*args: Any, **kwargs: Any) -> None:
            await start_up(*args, **kwargs)
            self._opened.set()

        self._uvicorn.startup = startup


def _uvloop_policy() -> asyncio.AbstractEventLoopPolicy:
    import uvloop

    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy
