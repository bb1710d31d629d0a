"""Who may call: every HTTP path and every gRPC method asks for a key, but for those listed here by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import grpc
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from predictor.api_keys import ApiKeys
from predictor.http_errors import OPENAI_PREFIXES

OPEN_PATHS = frozenset({"/", "/health", "/v2/health/live", "/v2/health/ready", "/metrics"})
"""Asked by probes, load balancers and scrapers, which hold no key; they tell of the server's state only."""

OPEN_METHODS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady",
    }
)
"""The same over gRPC."""

MISSING = "no API key was given: send the header 'authorization: Bearer <key>'"
WRONG = "the API key is not one that this server accepts"
REALM = 'Bearer realm="pagedserve"'


class HttpGuard:
    """ASGI middleware that answers 401 to whoever presents no valid key.

    The body is OpenAI's on its paths and {"error": text} elsewhere; `www-authenticate` as in RFC 6750, section 3.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        authorization = _only([value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"])
        if self._keys.accept(authorization):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refusal(scope["path"], authorization)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": ""})


class GrpcGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Ends with UNAUTHENTICATED every call, also of a method that does not exist, that presents no valid key."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        metadata = handler_call_details.invocation_metadata or ()
        authorization = _only([value for name, value in metadata if name == "authorization"])
        if handler_call_details.method in OPEN_METHODS or self._keys.accept(authorization):
            return await continuation(handler_call_details)

        async def refuse(_requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, WRONG if authorization else MISSING)

        # NOTE: a stream in both directions fits every kind of method, and reads nothing of the request.
        return grpc.stream_stream_rpc_method_handler(refuse)


def _only(values: list[Any]) -> str | None:
    """The one value: which of several would count is anybody's guess, so none does."""
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def _refusal(path: str, authorization: str | None) -> JSONResponse:
    text = WRONG if authorization else MISSING
    body: dict[str, Any] = {"error": text}
    if _is_openai(path):
        body = {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}}
    challenge = f'{REALM}, error="invalid_token"' if authorization else REALM
    return JSONResponse(body, HTTPStatus.UNAUTHORIZED, {"www-authenticate": challenge})


def _is_openai(path: str) -> bool:
    # NOTE: KServe's V1 protocol shares /v1/models; its two verbs are its own.
    return path.startswith(OPENAI_PREFIXES) and not path.endswith((":predict", ":explain"))
