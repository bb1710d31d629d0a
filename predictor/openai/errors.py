"""OpenAI's error body, and which status each error class gets.

`{"error": {"message", "type", "param", "code"}}`, as in OpenAI's API reference under "Error codes".
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from engine.brief import brief_text
from engine.errors import (
    DeadlineExceededError,
    EngineDeadError,
    EngineDrainingError,
    EngineLoadingError,
    OverloadedError,
    RequestAbortedError,
    RequestError,
    UnavailableError,
)
from predictor.bodies import BodyTooLargeError, UnsupportedEncodingError
from predictor.error_headers import error_headers
from predictor.request_context import note_error

UNAVAILABLE_CODES: dict[type[Exception], str] = {
    EngineLoadingError: "engine_loading",
    EngineDrainingError: "engine_draining",
    EngineDeadError: "engine_dead",
}


class ModelNotFoundError(RequestError):
    """The body names a model that is not served here (HTTP 404)."""

    code = "model_not_found"

    def __init__(self, name: str, served: str) -> None:
        super().__init__(f"The model `{brief_text(name)}` does not exist; this server serves `{served}`", param="model")


STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (ModelNotFoundError, 404),
    (BodyTooLargeError, 413),
    (UnsupportedEncodingError, 415),
    (RequestError, 400),
    (OverloadedError, 429),
    (UnavailableError, 503),
    (RequestAbortedError, 503),
    (DeadlineExceededError, 504),
)
"""The first class that matches decides."""


def status_of(error: Exception) -> int:
    """The HTTP status of an error, by its class; anything that was not raised on purpose is a 500."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def error_body(error: Exception) -> bytes:
    """The JSON body of an error, for a response or for an event within a stream."""
    note_error(error)
    message, kind, param, code = str(error), "server_error", None, "internal_error"
    match error:
        case RequestError():
            kind, param, code = "invalid_request_error", error.param and brief_text(error.param), error.code
        case OverloadedError():
            kind, code = "rate_limit_error", "rate_limit_exceeded"
        case UnavailableError():
            kind, code = "service_unavailable_error", UNAVAILABLE_CODES.get(type(error), "engine_unavailable")
        case RequestAbortedError():
            kind, code = "service_unavailable_error", "request_aborted"
        case DeadlineExceededError():
            kind, code = "timeout_error", "deadline_exceeded"
        case _:
            # NOTE: what was not raised on purpose may name internals; it goes to the log, not to the client.
            message = "the server failed on this request; its log has the details"
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return msgspec.json.encode(body)


def error_response(error: Exception) -> Response:
    """The response for an error."""
    return Response(error_body(error), status_of(error), error_headers(error), "application/json")
