"""Errors of the OIP surface, and what each class of error is over HTTP and gRPC."""

from __future__ import annotations

import logging

import grpc

from engine.errors import (
    DeadlineExceededError,
    OverloadedError,
    PagedServeError,
    RequestAbortedError,
    RequestError,
    UnavailableError,
)
from predictor.bodies import BodyTooLargeError, UnsupportedEncodingError
from predictor.kserve_adapter import InvalidInput
from predictor.request_context import note_error

logger = logging.getLogger(__name__)


class MalformedRequestError(RequestError):
    """A request that does not follow the protocol; the message names the field."""

    code = "malformed_request"


class ModelNotFoundError(PagedServeError):
    """No model or version of that name is served (HTTP 404, gRPC NOT_FOUND)."""


class UnsupportedOperationError(PagedServeError):
    """A repository operation that this server does not offer (HTTP 400, gRPC UNIMPLEMENTED)."""


INTERNAL_ERROR = "the server failed on this request; its log has the details"

# NOTE: the first class that matches decides, so a subclass stands before its base.
_STATUSES: tuple[tuple[type[Exception], int, grpc.StatusCode], ...] = (
    (BodyTooLargeError, 413, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnsupportedEncodingError, 415, grpc.StatusCode.INVALID_ARGUMENT),
    (RequestError, 400, grpc.StatusCode.INVALID_ARGUMENT),
    (ModelNotFoundError, 404, grpc.StatusCode.NOT_FOUND),
    (UnsupportedOperationError, 400, grpc.StatusCode.UNIMPLEMENTED),
    (OverloadedError, 429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnavailableError, 503, grpc.StatusCode.UNAVAILABLE),
    (DeadlineExceededError, 504, grpc.StatusCode.DEADLINE_EXCEEDED),
    (RequestAbortedError, 503, grpc.StatusCode.UNAVAILABLE),
    # A subclass of the model may refuse an input in `preprocess` with KServe's own error.
    (InvalidInput, 400, grpc.StatusCode.INVALID_ARGUMENT),
)


def http_status(error: Exception) -> int:
    """The HTTP status of an error's class; 500 for what was not raised on purpose."""
    return next((status for kind, status, _ in _STATUSES if isinstance(error, kind)), 500)


def grpc_status(error: Exception) -> grpc.StatusCode:
    """The gRPC status code of an error's class; INTERNAL for what was not raised on purpose."""
    return grpc_status_of(type(error))


def grpc_status_of(error_class: type[BaseException]) -> grpc.StatusCode:
    """The same of a class."""
    return next((code for kind, _, code in _STATUSES if issubclass(error_class, kind)), grpc.StatusCode.INTERNAL)


def public_message(error: Exception) -> str:
    """What the client may read. An error that was not raised on purpose is logged here and told in plain words."""
    note_error(error)
    if isinstance(error, PagedServeError | InvalidInput):
        return str(error)
    logger.error("an OIP request failed", exc_info=error)
    return INTERNAL_ERROR
