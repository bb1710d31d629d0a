"""What is known of a request at the server's edge, carried to whoever handles it and told to listeners at its end.

The edges (`predictor.edge_http`, `predictor.edge_grpc`) open a `RequestContext` for each request; tasks inherit it.
What handles the request notes on it what it finds out: the model that was asked for, the sampling parameters, the error
that the client is told. The engine's records of what ran for it come by `records`. At its end the request log and the
tracer hear of it, each exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from engine.brief import brief_text
from engine.errors import OverloadedError, RequestError

if TYPE_CHECKING:
    from engine.metrics import RequestRecord
    from engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
CARRIED = frozenset((REQUEST_ID, "traceparent", "tracestate"))
"""Names of the headers and metadata that `identity_of` reads."""
MAX_REQUEST_ID_LENGTH = 128
SANE_REQUEST_ID = re.compile(rf"[!#-&(-\[\]-~]{{1,{MAX_REQUEST_ID_LENGTH}}}")
"""Visible ASCII but quotes and the backslash: fit for headers, log lines and ids."""
MAX_TRACESTATE_LENGTH = 512
"""What W3C Trace Context, section 3.3.1.5, asks everybody to take; a longer one is left out. It is exported with every
span of its request, and what collectors take in one message is bounded."""
TRACEPARENT = re.compile(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.{0,456})?"
)
"""W3C Trace Context, section 3.2: version, trace id, parent id, flags. What versions after 00 add is passed over, up to
the 512 characters that OpenTelemetry takes."""


@dataclass(frozen=True, slots=True)
class NotedError:
    """What is kept of an error: its class, the code of a client's mistake, the reason of a refusal.

    NOTE: not the error itself, whose traceback holds the frames, and with them the request's body, until the garbage
    collector comes by. Nor its message, which may repeat what the client wrote.
    """

    kind: type[BaseException]
    code: str | None = None
    reason: str | None = None


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request, from its arrival to its end. Times are readings of `time.monotonic()`.

    protocol: how it came. method: HTTP's, or the gRPC method's full name. route: the path's template, or the gRPC
    method; None where nothing is served. trace_headers: traceparent and tracestate as they came.

    status: HTTP's number, or the name of gRPC's code. is_aborted: the client went away before its end. model: the name
    that the client used. params: of the first prompt. prompt: the first one's text, only where it is to be logged.
    records: of the prompts that have left the engine, at the end in the order of the prompts. trace_id, span_id:
    hexadecimal, once known.
    """

    request_id: str
    protocol: Literal["http", "grpc"]
    method: str
    edge: RequestEdge
    route: str | None = None
    client: str | None = None
    http_version: str | None = None
    scheme: str | None = None
    trace_headers: dict[str, str] = field(default_factory=dict)
    start_time: float = field(default_factory=time.monotonic)
    end_time: float = 0.0
    is_quiet: bool = False
    is_aborted: bool = False
    status: int | str | None = None
    error: NotedError | None = None
    model: str | None = None
    response_id: str | None = None
    params: SamplingParams | None = None
    num_prompts: int = 0
    prompt: str | None = None
    records: list[RequestRecord] = field(default_factory=list)
    num_children: int = 0
    trace_id: str | None = None
    span_id: str | None = None

    def child(self) -> RequestContext:
        """The next of several requests within this one, as the messages of a stream are."""
        self.num_children += 1
        return RequestContext(
            f"{self.request_id}-{self.num_children}",
            self.protocol,
            self.method,
            self.edge,
            route=self.route,
            client=self.client,
            trace_headers=self.trace_headers,
            trace_id=self.trace_id,
        )

    @property
    def error_type(self) -> str | None:
        """The class of what went wrong, or the status where no error was noted; None for a success."""
        if self.is_aborted:
            return "client_disconnected"
        if self.error is not None:
            return self.error.kind.__name__
        if isinstance(self.status, int):
            return str(self.status) if self.status >= 400 else None
        return None if self.status in ("OK", None) else self.status


class RequestListener(Protocol):
    """Hears of every request that is not a probe's."""

    def on_request_ended(self, request: RequestContext) -> None: ...

    def close(self) -> None:
        """No request will end any more."""
        ...


class RequestEdge:
    """Where requests begin and end. listeners: told of each end, in this order. keeps_prompts: for the log."""

    def __init__(self, listeners: Sequence[RequestListener] = (), *, keeps_prompts: bool = False) -> None:
        self.keeps_prompts = keeps_prompts
        self._listeners = tuple(listeners)

    @contextmanager
    def handling(self, request: RequestContext) -> Iterator[None]:
        """Within it `request` is the current one; at its end the listeners are told.

        A cancellation is the client's (or the server's end, which takes the client's connection with it).
        NOTE: after an exception it stays the current one, so that who logs the exception further out tells its id. The
        task that handles it ends with it.
        """
        token = _CURRENT.set(request)
        try:
            yield
            _CURRENT.reset(token)
        except asyncio.CancelledError:
            request.is_aborted = True
            raise
        finally:
            self.end(request)

    def end(self, request: RequestContext) -> None:
        """Tells the listeners that the request is over."""
        request.end_time = time.monotonic()
        if request.is_quiet:
            return
        # NOTE: they came as the prompts ended. Prompts are prepared one after the other, so no two arrive at one time.
        request.records.sort(key=lambda record: record.arrival_time)
        for listener in self._listeners:
            try:
                listener.on_request_ended(request)
            except Exception:
                # NOTE: what only watches must not fail the request; its answer has been sent.
                logger.exception("%s failed", type(listener).__name__)

    def close(self) -> None:
        """Tells the listeners that no request will end any more; the last one, which is the quickest, first."""
        for listener in reversed(self._listeners):
            listener.close()


_CURRENT: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def current_request() -> RequestContext | None:
    """The request that is being handled here, or None outside of one."""
    return _CURRENT.get()


def note_error(error: BaseException) -> None:
    """The current request's client is told this error. The first one counts."""
    request = _CURRENT.get()
    if request is not None and request.error is None:
        code = error.code if isinstance(error, RequestError) else None
        reason = error.reason if isinstance(error, OverloadedError) else None
        request.error = NotedError(type(error), code, reason)


def note_model(name: str, response_id: str | None = None) -> None:
    """The current request's client names this model, and its answer will have this id."""
    request = _CURRENT.get()
    if request is not None:
        request.model = brief_text(name)
        request.response_id = response_id


def identity_of(headers: Iterable[tuple[str, str]]) -> tuple[str, dict[str, str]]:
    """The request's id and its trace headers. headers: those named in `CARRIED`, as often as they came."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    # NOTE: which of several ids would count is anybody's guess, so none does; nor does one of several parents.
    ids, parents = values.get(REQUEST_ID, []), values.get("traceparent", [])
    trace_headers: dict[str, str] = {}
    if len(parents) == 1:
        trace_headers["traceparent"] = parents[0]
        state = ",".join(values.get("tracestate", ()))
        if 0 < len(state) <= MAX_TRACESTATE_LENGTH:
            trace_headers["tracestate"] = state
    return request_id_of(ids[0] if len(ids) == 1 else None), trace_headers


def request_id_of(given: str | None) -> str:
    """The caller's x-request-id if it is fit for logs and ids, else a new one."""
    return given if given and SANE_REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


def trace_id_of(trace_headers: dict[str, str]) -> str | None:
    """The trace that the client says the request is part of."""
    match = TRACEPARENT.fullmatch(trace_headers.get("traceparent", ""))
    return None if match is None else match[1]
