"""What is told of a request that has left the engine."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import EngineDeadError
from engine.in_flight import MAX_PREEMPTION_TIMES, InFlight, TrackedRequest
from engine.inputs import GenerationRequest
from engine.messages import Admitted, Preempted, Resumed, SequenceId, SequenceOutput
from engine.metrics import RequestRecord
from engine.outputs import SequenceDelta
from engine.sampling_params import SamplingParams
from engine.streams import GenerationStream


class Listener:
    """Keeps the records; every other event is nothing to it."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def on_finished(self, record: RequestRecord) -> None:
        self.records.append(record)

    def __getattr__(self, name: str) -> Any:
        assert name.startswith("on_")
        return lambda *_: None


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def books(listener: Listener) -> InFlight:
    return InFlight(listener)  # type: ignore[arg-type]


def enter(books: InFlight, n: int) -> TrackedRequest:
    request = GenerationRequest("r", None, (1, 2, 3), SamplingParams(n=n, max_tokens=9), 0, 10.0)
    stream = GenerationStream(request, lambda _: None)
    tracked = TrackedRequest(stream, (sequence.sequence_id for sequence in request.sequences()))
    books.add(tracked)
    return tracked


def finish(books: InFlight, tracked: TrackedRequest, index: int, reason: Any) -> None:
    sequence_id = SequenceId(f"r/{index}")
    books.count_tokens(SequenceOutput(sequence_id, (7,)), 12.0)
    tracked.stream.push(SequenceDelta(index, "", (7,), finish_reason=reason))
    books.finish_sequence(tracked, sequence_id, reason)


def test_the_submitter_and_the_listener_hear_the_same_once(books: InFlight, listener: Listener) -> None:
    heard: list[RequestRecord] = []
    tracked = enter(books, 2)
    tracked.stream.on_end = heard.append
    books.admit(Admitted(SequenceId("r/1"), 2, 11.0))
    books.admit(Admitted(SequenceId("r/0"), 0, 11.5))
    finish(books, tracked, 1, "stop")
    assert heard == []
    finish(books, tracked, 0, "length")
    assert heard == listener.records
    (record,) = heard
    assert (record.request_id, record.n, record.max_tokens, record.num_cached_tokens) == ("r", 2, 9, 2)
    assert (record.arrival_time, record.admitted_time, record.first_token_time) == (10.0, 11.0, 12.0)
    assert (record.finish_reason, record.finish_reasons, record.error) == ("length", ("length", "stop"), None)
    assert (record.num_prompt_tokens, record.num_output_tokens) == (3, 2)


def test_a_sequence_that_did_not_finish_has_the_requests_reason(books: InFlight, listener: Listener) -> None:
    tracked = enter(books, 3)
    finish(books, tracked, 1, "stop")
    books.close(tracked, "abort")
    assert listener.records[0].finish_reasons == ("abort", "stop", "abort")


def test_preemptions_of_all_sequences_are_told(books: InFlight, listener: Listener) -> None:
    tracked = enter(books, 2)
    for index in range(2):
        books.admit(Admitted(SequenceId(f"r/{index}"), 0, 11.0))
    books.preempt(Preempted(SequenceId("r/1"), 12.0))
    books.preempt(Preempted(SequenceId("r/0"), 13.0))
    books.resume(Resumed(SequenceId("r/1"), 14.0))
    books.preempt(Preempted(SequenceId("gone/0"), 15.0))
    books.resume(Resumed(SequenceId("gone/0"), 15.0))
    assert (books.num_running, books.num_waiting) == (2, 0), "a preempted sequence counts as running"
    books.close(tracked, "abort")
    (record,) = listener.records
    assert (record.num_preemptions, record.preempted_times, record.resumed_times) == (2, (12.0, 13.0), (14.0,))


def test_of_many_preemptions_the_first_times_are_kept(books: InFlight, listener: Listener) -> None:
    tracked = enter(books, 1)
    for moment in range(MAX_PREEMPTION_TIMES + 9):
        books.preempt(Preempted(SequenceId("r/0"), moment))
        books.resume(Resumed(SequenceId("r/0"), moment + 0.5))
    books.close(tracked, "abort")
    (record,) = listener.records
    assert record.num_preemptions == MAX_PREEMPTION_TIMES + 9
    assert record.preempted_times == tuple(range(MAX_PREEMPTION_TIMES))
    assert len(record.resumed_times) == MAX_PREEMPTION_TIMES


def test_an_error_is_told_by_its_class(books: InFlight, listener: Listener) -> None:
    books.close(enter(books, 1), "error", EngineDeadError("the text is nobody's business"))
    (record,) = listener.records
    assert (record.finish_reason, record.finish_reasons, record.error) == ("error", ("error",), "EngineDeadError")
    assert record.admitted_time is None
