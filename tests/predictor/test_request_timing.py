"""Sums and stages over the prompts of a request."""

from __future__ import annotations

from typing import Any

from engine.metrics import RequestRecord
from predictor.request_context import RequestContext, RequestEdge
from predictor.request_timing import RequestTiming


def timing(*records: RequestRecord) -> RequestTiming:
    return RequestTiming.of(RequestContext("r", "http", "POST", RequestEdge(), records=list(records)))


def record(reason: str, arrival: float, admitted: float | None, first: float | None, finish: float, **more: Any) -> Any:
    return RequestRecord(reason, arrival, admitted, first, finish, num_prompt_tokens=4, num_output_tokens=10, **more)


def test_stages_follow_one_another() -> None:
    one = timing(record("stop", 1.0, 1.5, 2.5, 6.0, num_cached_tokens=2))
    assert (one.queue_seconds, one.prefill_seconds, one.decode_seconds, one.ttft_seconds) == (0.5, 1.0, 3.5, 1.5)
    assert (one.num_prompt_tokens, one.num_output_tokens, one.num_cached_tokens) == (4, 10, 2)
    assert (one.finish_reason, one.tokens_per_second) == ("stop", 2.0)


def test_several_prompts_from_the_first_to_the_last() -> None:
    all_of = timing(
        record("stop", 1.0, 2.0, 4.0, 5.0, num_preemptions=1), record("length", 1.0, 1.5, 3.0, 9.0, num_preemptions=2)
    )
    assert (all_of.queue_seconds, all_of.prefill_seconds, all_of.decode_seconds) == (0.5, 1.5, 6.0)
    assert (all_of.num_prompt_tokens, all_of.num_preemptions, all_of.finish_reason) == (8, 3, "length")


def test_a_stage_that_was_not_reached_is_none() -> None:
    waiting = timing(record("abort", 1.0, None, None, 3.0))
    assert (waiting.queue_seconds, waiting.prefill_seconds, waiting.decode_seconds) == (2.0, None, None)
    computing = timing(record("error", 1.0, 2.0, None, 3.0))
    assert (computing.prefill_seconds, computing.decode_seconds, computing.ttft_seconds) == (1.0, None, None)


def test_what_never_reached_the_engine_has_no_times() -> None:
    assert timing() == RequestTiming()
