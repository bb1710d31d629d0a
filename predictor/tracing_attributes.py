"""What the spans of a request say of it, by OpenTelemetry's semantic conventions: 1.45 for HTTP and RPC, and those of
generative AI, which have a repository of their own, 0.1. The latter are written for clients; a server has the same to
tell.

Never a word of prompt or output, nor anything else that a client wrote but the name of the model and its ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from opentelemetry.trace import Status, StatusCode

from predictor.request_context import RequestContext
from predictor.request_timing import RequestTiming

if TYPE_CHECKING:
    from engine.metrics import RequestRecord

Value = str | int | float | tuple[str, ...]

CHAT_ROUTES = ("/chat/completions",)
TEXT_ROUTES = ("/completions", "/infer", "/generate", "/generate_stream", ":predict", "ModelInfer", "ModelStreamInfer")
GRPC_SERVER_ERRORS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Codes that are errors of a server ("Semantic conventions for gRPC", status of server spans)."""
MAX_INTEGER = 2**63 - 1
"""Of an attribute; beyond it the exporter drops the attribute and logs a traceback."""
KNOWN_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "QUERY"})


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a request's time, and what happened within it; times as `time.monotonic()` tells them."""

    name: str
    start: float
    end: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    events: Sequence[tuple[str, float]] = ()


def span_name(request: RequestContext) -> str:
    """HTTP: method and route; gRPC: the method's full name ("Semantic conventions for HTTP spans", "RPC", name)."""
    if request.protocol == "grpc":
        return request.route or "_OTHER"
    method = request.method if request.method in KNOWN_METHODS else "HTTP"
    return f"{method} {request.route}" if request.route else method


def sampler_attributes(request: RequestContext) -> dict[str, Value]:
    """Those that a sampler may decide by."""
    if request.protocol == "grpc":
        return {"rpc.system.name": "grpc", "rpc.method": request.route or "_OTHER"}
    attributes: dict[str, Value] = {
        "http.request.method": request.method if request.method in KNOWN_METHODS else "_OTHER"
    }
    if request.route:
        attributes["http.route"] = request.route
    return attributes


def request_attributes(request: RequestContext) -> dict[str, Value]:
    """All others of the server's span. Times are seconds."""
    timing = RequestTiming.of(request)
    params = request.params
    found: dict[str, Value | None] = {
        "error.type": request.error_type,
        "pagedserve.request_id": request.request_id,
        "gen_ai.operation.name": _operation(request.route),
        "gen_ai.request.model": request.model,
    }
    if request.protocol == "grpc":
        found |= {"rpc.response.status_code": str(request.status), "network.protocol.name": "http"}
        found["network.protocol.version"] = "2"
    else:
        found |= {
            "http.response.status_code": request.status,
            "url.scheme": request.scheme,
            "network.protocol.name": "http",
            "network.protocol.version": request.http_version,
        }
    if found["gen_ai.operation.name"] is not None:
        found["gen_ai.provider.name"] = "pagedserve"
    if params is not None:
        found |= {
            "gen_ai.request.max_tokens": None if params.max_tokens is None else min(params.max_tokens, MAX_INTEGER),
            "gen_ai.request.temperature": float(params.temperature),
            "gen_ai.request.top_p": float(params.top_p),
            "gen_ai.request.top_k": params.top_k if params.top_k > 0 else None,
            "gen_ai.request.frequency_penalty": float(params.frequency_penalty),
            "gen_ai.request.presence_penalty": float(params.presence_penalty),
            "gen_ai.request.seed": params.seed,
            "gen_ai.request.choice.count": params.n if params.n > 1 else None,
            "pagedserve.num_prompts": request.num_prompts,
        }
    if request.records:
        found |= {
            "gen_ai.response.id": request.response_id or request.request_id,
            "gen_ai.response.model": request.model,
            "gen_ai.response.finish_reasons": tuple(
                "error" if reason == "abort" else reason
                for record in request.records
                for reason in record.finish_reasons or (record.finish_reason,)
            ),
            "gen_ai.usage.input_tokens": timing.num_prompt_tokens,
            "gen_ai.usage.output_tokens": timing.num_output_tokens,
            "gen_ai.usage.cache_read.input_tokens": timing.num_cached_tokens,
            "pagedserve.cached_tokens": timing.num_cached_tokens,
            "pagedserve.num_preemptions": timing.num_preemptions,
            "pagedserve.time_to_first_token": timing.ttft_seconds,
            "pagedserve.queue_seconds": timing.queue_seconds,
            "pagedserve.prefill_seconds": timing.prefill_seconds,
            "pagedserve.decode_seconds": timing.decode_seconds,
        }
    return {name: value for name, value in found.items() if value is not None}


def status_of(request: RequestContext) -> Status | None:
    """Error for what went wrong on the server's side, else none.

    HTTP: 5xx, and an answer that broke off, for whatever reason ("unless there was another error"); gRPC: the codes of
    `GRPC_SERVER_ERRORS`, so that a cancelled call is none. Beside the conventions, a request refused for want of room
    is an error in both: the server could not do what it is for.
    """
    description = request.error_type
    if request.is_aborted:
        if request.protocol == "grpc":
            return None
        description = "the client went away before its answer was complete"
    elif request.error is not None and request.error.reason is not None:
        description = f"refused: {request.error.reason}"
    elif isinstance(request.status, int):
        broke_off = request.error is not None and request.status < 400
        if request.status < 500 and not broke_off:
            return None
    elif request.status not in GRPC_SERVER_ERRORS:
        return None
    return Status(StatusCode.ERROR, description)


def stages(request: RequestContext, max_prompts: int) -> Iterator[Stage]:
    """Where the time went: receive once, then queue, prefill and decode of each of the first `max_prompts` prompts."""
    if not request.records:
        return
    yield Stage("receive", request.start_time, min(record.arrival_time for record in request.records))
    for number, record in enumerate(request.records[:max_prompts]):
        attributes: dict[str, Value] = {"pagedserve.engine_request_id": record.request_id}
        if request.num_prompts > 1:
            attributes["pagedserve.prompt"] = number
        admitted, first, finish = record.admitted_time, record.first_token_time, record.finish_time
        yield Stage("queue", record.arrival_time, finish if admitted is None else admitted, attributes)
        if admitted is not None:
            prefill: dict[str, Value] = {
                **attributes,
                "gen_ai.usage.input_tokens": record.num_prompt_tokens,
                "pagedserve.cached_tokens": record.num_cached_tokens,
            }
            yield Stage("prefill", admitted, finish if first is None else first, prefill, _events(record, None, first))
        if first is not None:
            decode: dict[str, Value] = {**attributes, "gen_ai.usage.output_tokens": record.num_output_tokens}
            yield Stage("decode", first, finish, decode, _events(record, first, None))


def _events(record: RequestRecord, start: float | None, end: float | None) -> tuple[tuple[str, float], ...]:
    """The preemptions of a prompt's sequences, and their ends, from `start` on and before `end`, by their times."""
    if not record.num_preemptions:
        return ()
    events = [("preempted", time) for time in record.preempted_times]
    events += (("resumed", time) for time in record.resumed_times)
    within = (one for one in events if (start is None or start <= one[1]) and (end is None or one[1] < end))
    return tuple(sorted(within, key=itemgetter(1)))


def _operation(route: str | None) -> str | None:
    if route is None:
        return None
    if route.endswith(CHAT_ROUTES):
        return "chat"
    return "text_completion" if route.endswith(TEXT_ROUTES) else None
