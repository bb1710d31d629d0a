"""What the engine's records tell of a whole request, which may be of several prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from predictor.request_context import RequestContext

WORST_FIRST = ("error", "abort", "length", "stop")


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """Counts over all prompts, the least fortunate finish reason, and times in seconds.

    The stages follow one another: queue until the first prompt is admitted, prefill until the first token, decode until
    the last end. A stage that was not reached is None. tokens_per_second: output tokens over the time in the engine.
    """

    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    ttft_seconds: float | None = None
    tokens_per_second: float | None = None

    @classmethod
    def of(cls, request: RequestContext) -> RequestTiming:
        """The sum of the request's records; nothing but None and 0 where it never reached the engine."""
        records = request.records
        if not records:
            return cls()
        arrival = min(record.arrival_time for record in records)
        finish = max(record.finish_time for record in records)
        admitted = min((r.admitted_time for r in records if r.admitted_time is not None), default=None)
        first = min((r.first_token_time for r in records if r.first_token_time is not None), default=None)
        num_output_tokens = sum(record.num_output_tokens for record in records)
        reasons = {record.finish_reason for record in records}
        return cls(
            finish_reason=next((reason for reason in WORST_FIRST if reason in reasons), None),
            num_prompt_tokens=sum(record.num_prompt_tokens for record in records),
            num_output_tokens=num_output_tokens,
            num_cached_tokens=sum(record.num_cached_tokens for record in records),
            num_preemptions=sum(record.num_preemptions for record in records),
            queue_seconds=_span(arrival, finish if admitted is None else admitted),
            prefill_seconds=_span(admitted, finish if first is None else first),
            decode_seconds=_span(first, finish),
            ttft_seconds=_span(arrival, first),
            tokens_per_second=round(num_output_tokens / (finish - arrival), 2) if finish > arrival else None,
        )


def _span(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 6)
