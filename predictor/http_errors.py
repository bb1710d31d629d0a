"""Errors of the routes that are neither OIP's inference nor OpenAI's: mapped by class, answered as {"error": text}."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from engine.brief import brief_text
from engine.errors import (
    DeadlineExceededError,
    OverloadedError,
    PagedServeError,
    RequestAbortedError,
    RequestError,
    UnavailableError,
)
from predictor.bodies import BodyTooLargeError, UnsupportedEncodingError
from predictor.disconnect import CLIENT_CLOSED_REQUEST, ClientDisconnectedError
from predictor.error_headers import error_headers
from predictor.kserve_adapter import InvalidInput
from predictor.request_context import note_error

OPENAI_PREFIXES = ("/v1/", "/openai/")
"""Where an unknown path or a wrong method is answered in OpenAI's shape, but for KServe's V1 protocol, `/v1/models`."""


class NotServedError(RequestError):
    """The request names a model that this server does not serve (HTTP 404)."""

    code = "model_not_found"


class NotSupportedError(PagedServeError):
    """A verb of KServe's protocol that this model does not have (HTTP 501)."""


STATUSES: tuple[tuple[type[PagedServeError], HTTPStatus], ...] = (
    (NotServedError, HTTPStatus.NOT_FOUND),
    (BodyTooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (UnsupportedEncodingError, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (RequestError, HTTPStatus.BAD_REQUEST),
    (OverloadedError, HTTPStatus.TOO_MANY_REQUESTS),
    (UnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (RequestAbortedError, HTTPStatus.SERVICE_UNAVAILABLE),
    (DeadlineExceededError, HTTPStatus.GATEWAY_TIMEOUT),
    (NotSupportedError, HTTPStatus.NOT_IMPLEMENTED),
)
"""The first class that matches decides."""


def status_of(error: PagedServeError) -> HTTPStatus:
    """HTTP status of an error of the engine or of this package, by its class."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


def error_response(error: PagedServeError) -> JSONResponse:
    """The answer to an error."""
    note_error(error)
    return JSONResponse({"error": str(error)}, status_of(error), error_headers(error))


def add_exception_handlers(app: FastAPI) -> None:
    """Answers in JSON for whatever a route did not answer itself, unknown paths included."""
    handlers: dict[type[Exception], Any] = {
        PagedServeError: _on_own_error,
        InvalidInput: _on_invalid_input,
        ClientDisconnectedError: _on_disconnect,
        ClientDisconnect: _on_disconnect,
        RequestValidationError: _on_validation_error,
        HTTPException: _on_http_exception,
        Exception: _on_unexpected,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


async def _on_own_error(_: Request, error: PagedServeError) -> Response:
    return error_response(error)


async def _on_invalid_input(_: Request, error: InvalidInput) -> Response:
    # NOTE: what KServe's users raise in their preprocess for a client's mistake.
    note_error(error)
    return JSONResponse({"error": str(error)}, HTTPStatus.BAD_REQUEST)


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_validation_error(_: Request, error: RequestValidationError) -> Response:
    note_error(error)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return JSONResponse({"error": f"{where}: {first['msg']}" if where else first["msg"]}, HTTPStatus.BAD_REQUEST)


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    text = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:
        text = f"no route {request.method} {brief_text(request.url.path)}"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # NOTE: in one order, as the set of methods has none.
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        error.headers = {"Allow": allowed}
        text = f"{brief_text(request.url.path)} answers {allowed}, not {request.method}"
    body: Any = text
    if request.url.path.startswith(OPENAI_PREFIXES) and not request.url.path.startswith("/v1/models"):
        code = HTTPStatus(error.status_code).name.lower()
        body = {"message": text, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": body}, error.status_code, error.headers)


async def _on_unexpected(_: Request, __: Exception) -> Response:
    return unexpected_response()


def unexpected_response() -> Response:
    """The answer to an error that was not raised on purpose."""
    # NOTE: the exception itself is logged by uvicorn; a client gets no inner details.
    return JSONResponse({"error": "internal server error"}, HTTPStatus.INTERNAL_SERVER_ERROR)
