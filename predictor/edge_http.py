"""The edge of HTTP: each request gets its context, each answer its `x-request-id`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.brief import brief_text
from predictor.disconnect import CLIENT_CLOSED_REQUEST
from predictor.http_errors import unexpected_response
from predictor.logs import QUIET_PATHS
from predictor.request_context import (
    CARRIED,
    REQUEST_ID,
    RequestContext,
    RequestEdge,
    identity_of,
    note_error,
    trace_id_of,
)

QUIET_ROUTES = QUIET_PATHS | {
    "/v2/models/{model_name}/ready",
    "/v2/models/{model_name}/versions/{model_version}/ready",
}
"""Routes that probes and scrapers ask: neither logged nor traced."""
NAME_PARAMETERS = ("model_name", "name")
"""Parameters of paths that hold the model's name."""
_REQUEST_ID = REQUEST_ID.encode()
_CARRIED = frozenset(name.encode() for name in CARRIED)


def route_paths(routers: Iterable[APIRouter]) -> dict[Any, str]:
    """The path of every endpoint, as it is declared: with the names of its parameters, not their values."""
    return {route.endpoint: route.path for router in routers for route in router.routes if isinstance(route, Route)}


class HttpEdge:
    """ASGI middleware around everything else. paths: see `route_paths`."""

    def __init__(self, app: ASGIApp, edge: RequestEdge, paths: Mapping[Any, str]) -> None:
        self._app = app
        self._edge = edge
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = self._open(scope)
        answer = _Answer(request, send)
        with self._edge.handling(request):
            try:
                await self._app(scope, receive, answer.send)
            except Exception as error:
                note_error(error)
                if request.status is None:
                    # NOTE: the handler of unexpected errors stands outside of this and would leave the id out.
                    await unexpected_response()(scope, receive, answer.send)
                raise
            finally:
                self._close(request, scope, answer)

    def _open(self, scope: Scope) -> RequestContext:
        carried = (pair for pair in scope["headers"] if pair[0] in _CARRIED)
        request_id, trace_headers = identity_of((name.decode(), value.decode("latin-1")) for name, value in carried)
        client = scope.get("client")
        return RequestContext(
            request_id,
            "http",
            scope["method"],
            self._edge,
            client=f"{client[0]}:{client[1]}" if client else None,
            http_version=scope.get("http_version"),
            scheme=scope.get("scheme"),
            trace_headers=trace_headers,
            trace_id=trace_id_of(trace_headers),
        )

    def _close(self, request: RequestContext, scope: Scope, answer: _Answer) -> None:
        request.route = getattr(scope.get("route"), "path", None) or self._paths.get(scope.get("endpoint"))
        request.is_quiet = (request.route or scope["path"]) in QUIET_ROUTES
        parameters = scope.get("path_params") or {}
        if request.model is None:
            request.model = next((brief_text(parameters[name]) for name in NAME_PARAMETERS if name in parameters), None)
        if request.status is None:
            request.status = CLIENT_CLOSED_REQUEST
        if request.status == CLIENT_CLOSED_REQUEST or not (answer.is_complete or request.error):
            request.is_aborted = True


class _Answer:
    """Passes the answer on, with the request's id, and notes its status and whether its end was reached."""

    def __init__(self, request: RequestContext, send: Send) -> None:
        self.is_complete = False
        self._request = request
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._request.status = message["status"]
            headers = list(message.get("headers", ()))
            if not any(name == _REQUEST_ID for name, _ in headers):
                headers.append((_REQUEST_ID, self._request.request_id.encode()))
            message["headers"] = headers
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)
