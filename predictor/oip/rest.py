"""OIP over HTTP: every /v2 path except the server's own health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from predictor.bodies import decode, read_bytes, single_header
from predictor.disconnect import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnectedError,
    WatchedStreamingResponse,
    run_until_disconnect,
)
from predictor.error_headers import error_headers
from predictor.oip.codec_json import HEADER_LENGTH, decode_request, encode_response
from predictor.oip.errors import UnsupportedOperationError, http_status, public_message
from predictor.oip.generate import (
    GenerateRequest,
    decode_generate,
    first_delta,
    generate,
    generate_events,
    generate_status,
    start,
)
from predictor.oip.infer import call_model
from predictor.oip.metadata import MODEL_VERSION, check_model, model_metadata, no_repository, server_metadata

if TYPE_CHECKING:
    from engine.streams import GenerationStream
    from predictor.model import PagedModel
    from predictor.service import GenerationService

Endpoint = Callable[[Request], Awaitable[Response]]
StatusOf = Callable[[Exception], int]


class OIPResponse(Response):
    """A JSON document, or bytes that already are one."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else orjson.dumps(content)


def error_response(error: Exception, status: int) -> OIPResponse:
    """inference_rest.md, "Inference Response JSON Error Object"."""
    return OIPResponse({"error": public_message(error)}, status, error_headers(error))


def build_router(service: GenerationService, model: PagedModel) -> APIRouter:
    """Routes of the Open Inference Protocol. Errors are {"error": message}."""
    routes = _Routes(service, model)
    router = APIRouter(default_response_class=OIPResponse, tags=["OIP"])

    def add(method: str, path: str, endpoint: Endpoint, status_of: StatusOf = http_status) -> None:
        router.add_api_route(path, _guarded(endpoint, status_of), methods=[method], name=f"oip-{endpoint.__name__}")

    for path in ("/v2", "/v2/"):
        add("GET", path, routes.server_metadata)
    add("GET", "/v2/models", routes.models)
    for prefix in ("/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}"):
        add("GET", prefix, routes.model_metadata)
        add("GET", f"{prefix}/ready", routes.model_ready)
        add("POST", f"{prefix}/infer", routes.infer)
        add("POST", f"{prefix}/generate", routes.generate, generate_status)
        add("POST", f"{prefix}/generate_stream", routes.generate_stream, generate_status)
    add("POST", "/v2/repository/index", routes.repository_index)
    add("POST", "/v2/repository/models/{model_name}/load", routes.repository_load)
    add("POST", "/v2/repository/models/{model_name}/unload", routes.repository_unload)
    return router


def _guarded(endpoint: Endpoint, status_of: StatusOf) -> Endpoint:
    """Turns every exception into OIP's error answer; KServe's own handlers must not see one."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (ClientDisconnectedError, ClientDisconnect):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as error:
            return error_response(error, status_of(error))

    return guarded


class _Routes:
    def __init__(self, service: GenerationService, model: PagedModel) -> None:
        self._service = service
        self._model = model

    async def server_metadata(self, _request: Request) -> Response:
        return OIPResponse(server_metadata())

    async def models(self, _request: Request) -> Response:
        return OIPResponse({"models": [self._service.model_name]})

    async def model_metadata(self, request: Request) -> Response:
        self._check_model(request)
        return OIPResponse(model_metadata(self._service))

    async def model_ready(self, request: Request) -> Response:
        self._check_model(request)
        is_ready = bool(await self._model.healthy())
        return OIPResponse({"name": self._service.model_name, "ready": is_ready}, 200 if is_ready else 503)

    async def infer(self, request: Request) -> Response:
        version = self._check_model(request)
        body = await read_bytes(request, self._service.max_body_size)
        header_length, name = single_header(request, HEADER_LENGTH), self._service.model_name
        decoded = await decode(body, lambda data: decode_request(data, header_length, name, version))
        response = await run_until_disconnect(request, call_model(self._model, decoded, request.headers))
        content, json_length = encode_response(response, decoded)
        if json_length is None:
            return OIPResponse(content)
        return OIPResponse(content, 200, {HEADER_LENGTH: str(json_length)}, "application/octet-stream")

    async def generate(self, request: Request) -> Response:
        decoded, stream = await self._start_generate(request)
        async with stream:
            work = generate(self._service, decoded, stream)
            return OIPResponse(await run_until_disconnect(request, work))

    async def generate_stream(self, request: Request) -> Response:
        decoded, stream = await self._start_generate(request)
        try:
            # NOTE: nothing is sent before the first token, so that an error until then has a proper status.
            first = await run_until_disconnect(request, first_delta(stream))
            events = generate_events(self._service, decoded, stream, first)
            # NOTE: closing a generator that was never started runs no `finally`: its empty first item starts it.
            await anext(events)
        except BaseException:
            stream.abort()
            raise
        return WatchedStreamingResponse(events)

    async def _start_generate(self, request: Request) -> tuple[GenerateRequest, GenerationStream]:
        self._check_model(request)
        decoded = await decode(await read_bytes(request, self._service.max_body_size), decode_generate)
        return decoded, await start(self._service, decoded)

    async def repository_index(self, _request: Request) -> Response:
        is_ready = self._service.is_ready
        entry = {
            "name": self._service.model_name,
            "version": MODEL_VERSION,
            "state": "READY" if is_ready else "UNAVAILABLE",
            "reason": "" if is_ready else "the model is not ready",
        }
        return OIPResponse([entry])

    async def repository_load(self, request: Request) -> Response:
        self._check_model(request)
        raise UnsupportedOperationError(no_repository("load"))

    async def repository_unload(self, request: Request) -> Response:
        self._check_model(request)
        raise UnsupportedOperationError(no_repository("unload"))

    def _check_model(self, request: Request) -> str | None:
        """The version in the path, if any. Raises `ModelNotFoundError`."""
        version: str | None = request.path_params.get("model_version")
        check_model(self._service, request.path_params["model_name"], version)
        return version
