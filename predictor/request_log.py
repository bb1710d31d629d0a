"""The request log: one line a request, at level INFO, of the logger `predictor.requests`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

from engine.brief import brief_text
from predictor.request_context import RequestContext
from predictor.request_timing import RequestTiming

logger = logging.getLogger("predictor.requests")

MAX_LOGGED_PROMPT_CHARACTERS = 1024
"""Of a prompt, where prompts are logged."""
SUMMARY_SECONDS = 1.0


class RequestLog:
    """Writes a line for each request that ends, `max_lines_per_second` at most.

    Requests beyond that are counted, and a line a second tells how many, by status.
    """

    def __init__(self, max_lines_per_second: int) -> None:
        self._max_lines = max_lines_per_second
        self._window_start = 0.0
        self._num_lines = 0
        self._left_out: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def on_request_ended(self, request: RequestContext) -> None:
        if request.end_time - self._window_start >= SUMMARY_SECONDS:
            self._window_start, self._num_lines = request.end_time, 0
        self._num_lines += 1
        if self._num_lines <= self._max_lines:
            _write(_message(request), request_fields(request))
            return
        if not self._left_out:
            self._timer = asyncio.get_running_loop().call_later(SUMMARY_SECONDS, self._summarise)
        self._left_out[str(request.status)] += 1

    def close(self) -> None:
        """Tells of those that no line has told of yet."""
        if self._timer is not None:
            self._timer.cancel()
        if self._left_out:
            self._summarise()

    def _summarise(self) -> None:
        by_status, self._left_out = self._left_out, Counter()
        num = by_status.total()
        requests = "1 request has no line of its own" if num == 1 else f"{num} requests have no line of their own"
        why = f"more than {self._max_lines} ended in a second" if self._max_lines else "--request_log_rate is 0"
        _write(f"{requests}: {why}", {"num_left_out": num, "by_status": dict(by_status)})


def request_fields(request: RequestContext) -> dict[str, Any]:
    """The members of a request's line; those that have no value are left out. Times are seconds."""
    timing = RequestTiming.of(request)
    error = request.error
    fields: dict[str, Any] = {
        "request_id": request.request_id,
        "trace_id": request.trace_id,
        "span_id": request.span_id,
        "protocol": "rest" if request.protocol == "http" else "grpc",
        "route": request.route,
        "method": brief_text(request.method) if request.protocol == "http" else None,
        # NOTE: one type a member, as stores of logs (Elasticsearch, BigQuery) want it: a number here, a name there.
        "status": request.status if request.protocol == "http" else None,
        "grpc_status": request.status if request.protocol == "grpc" else None,
        "client": None if request.client is None else brief_text(request.client),
        "model": request.model,
        "finish_reason": timing.finish_reason,
        "error_type": request.error_type,
        "error_code": None if error is None else error.code,
        "total_seconds": round(request.end_time - request.start_time, 6),
    }
    if request.records:
        fields |= {
            "engine_id": request.records[0].request_id,
            "num_prompts": request.num_prompts,
            "n": request.records[0].n,
            "prompt_tokens": timing.num_prompt_tokens,
            "output_tokens": timing.num_output_tokens,
            "cached_tokens": timing.num_cached_tokens,
            "num_preemptions": timing.num_preemptions,
            "ttft_seconds": timing.ttft_seconds,
            "queue_seconds": timing.queue_seconds,
            "prefill_seconds": timing.prefill_seconds,
            "decode_seconds": timing.decode_seconds,
            "tokens_per_second": timing.tokens_per_second,
        }
    if request.prompt is not None:
        fields["prompt"] = request.prompt[:MAX_LOGGED_PROMPT_CHARACTERS]
    return {name: value for name, value in fields.items() if value is not None}


def _message(request: RequestContext) -> str:
    what = f"{request.route or '(no route)'} {request.status}"
    return f"{brief_text(request.method)} {what}" if request.protocol == "http" else what


def _write(message: str, fields: dict[str, Any]) -> None:
    if logger.isEnabledFor(logging.INFO):
        # NOTE: made by hand, as logging would walk the stack to find the line of code.
        record = logging.LogRecord(logger.name, logging.INFO, __file__, 0, message, None, None)
        record.created = time.time()
        record.fields = fields
        logger.handle(record)
