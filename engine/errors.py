"""Errors of the engine, as one tree.

::

    PagedServeError
    ├── RequestError              the caller's mistake; refused before the engine sees it
    │   ├── InvalidParameterError   a sampling or request parameter out of range
    │   ├── InvalidPromptError      empty prompt, unknown token id, a template that refuses the messages
    │   └── ContextLengthError      prompt longer than the context, or than the KV pool can ever hold
    ├── OverloadedError           admission bound reached; try again after `retry_after` seconds
    ├── UnavailableError          nobody's mistake: the engine cannot take or finish the request now
    │   ├── EngineLoadingError
    │   ├── EngineDrainingError
    │   └── EngineDeadError
    ├── RequestAbortedError       the request was aborted while it ran (drain timeout, cancel)
    │   └── SlowReaderError         its client read too slowly
    ├── DeadlineExceededError     the request's own deadline passed
    └── StartupError              refused at start
        ├── ConfigError             a flag or argument
        └── ModelLoadError          a model folder or file that cannot be served

Only `RequestError`, `OverloadedError`, `UnavailableError`, `RequestAbortedError` and `DeadlineExceededError` may reach
a client, and each surface maps them by class, never by message.
"""

from __future__ import annotations


class PagedServeError(Exception):
    """Root of every error raised on purpose; `str(error)` is a message fit for the user."""


class RequestError(PagedServeError):
    """The caller's mistake (HTTP 400, gRPC INVALID_ARGUMENT).

    `param` names the offending field where there is one; `code` is a stable machine-readable word.
    """

    code: str = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class InvalidParameterError(RequestError):
    """A parameter of the wrong type or out of its range."""

    code = "invalid_parameter"


class InvalidPromptError(RequestError):
    """A prompt that cannot be run: empty, or holding a token id outside the vocabulary."""

    code = "invalid_prompt"


class ContextLengthError(RequestError):
    """A prompt that leaves no room for one new token in the context or in the KV pool."""

    code = "context_length_exceeded"


class OverloadedError(PagedServeError):
    """An admission bound is reached (HTTP 429, gRPC RESOURCE_EXHAUSTED); `retry_after` is in seconds."""

    def __init__(self, message: str, *, reason: str, retry_after: float) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class UnavailableError(PagedServeError):
    """The engine cannot take or finish the request now (HTTP 503, gRPC UNAVAILABLE)."""


class EngineLoadingError(UnavailableError):
    """The model is still being loaded."""


class EngineDrainingError(UnavailableError):
    """The server is shutting down and takes no new requests."""


class EngineDeadError(UnavailableError):
    """The engine process has died or failed; requests in flight are lost."""


class RequestAbortedError(PagedServeError):
    """The request was aborted while it ran, by the server (HTTP 503, gRPC UNAVAILABLE)."""


class SlowReaderError(RequestAbortedError):
    """More waits for the reader of a stream than the server buffers."""


class DeadlineExceededError(PagedServeError):
    """The deadline that the request carried has passed (HTTP 504, gRPC DEADLINE_EXCEEDED)."""


class StartupError(PagedServeError):
    """The server or `LLM` cannot start as configured; the message says what to change."""


class ConfigError(StartupError):
    """A flag or constructor argument that is unknown, malformed or contradictory."""


class ModelLoadError(StartupError):
    """A model folder or file that is missing, damaged, or of an unsupported family or type."""
