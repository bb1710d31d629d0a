"""The front's books of the requests that the engine has: who waits, who runs, and what the metrics hear of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from engine.messages import Admitted, Preempted, Resumed, SequenceId, SequenceOutput
from engine.metrics import EngineListener, RequestRecord
from engine.streams import GenerationStream

MAX_PREEMPTION_TIMES = 64
"""Of one request, and of those of its ends; all are counted."""


class TrackedRequest:
    """A request in flight: its stream, where its sequences are, and its times."""

    __slots__ = (
        "admitted_time",
        "deadline_timer",
        "finish_reasons",
        "last_token_times",
        "num_output_tokens",
        "num_preemptions",
        "output_lengths",
        "preempted_times",
        "resumed_times",
        "running",
        "sequence_ids",
        "stream",
        "waiting",
    )

    def __init__(self, stream: GenerationStream, sequence_ids: Iterable[SequenceId]) -> None:
        self.stream = stream
        self.sequence_ids = tuple(sequence_ids)
        self.waiting = set(self.sequence_ids)
        self.running: set[SequenceId] = set()
        self.admitted_time: float | None = None
        self.last_token_times: dict[SequenceId, float] = {}
        self.num_output_tokens = 0
        self.output_lengths: dict[SequenceId, int] = {}
        self.finish_reasons: dict[SequenceId, str] = {}
        self.num_preemptions = 0
        self.preempted_times: tuple[float, ...] = ()
        self.resumed_times: tuple[float, ...] = ()
        self.deadline_timer: asyncio.TimerHandle | None = None


class InFlight:
    """Every request from its submission to its end, and the counts over them.

    num_waiting: sequences accepted and not yet admitted to a batch; num_waiting_prompt_tokens: their prompt tokens.
    num_running: sequences admitted and not finished. idle: set while there is no request.
    """

    def __init__(self, listener: EngineListener) -> None:
        self._listener = listener
        self._requests: dict[str, TrackedRequest] = {}
        self.num_running = 0
        self.num_waiting = 0
        self.num_waiting_prompt_tokens = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def __len__(self) -> int:
        return len(self._requests)

    def all(self) -> list[TrackedRequest]:
        return list(self._requests.values())

    def get(self, request_id: str) -> TrackedRequest | None:
        return self._requests.get(request_id)

    def owner(self, sequence_id: SequenceId) -> TrackedRequest | None:
        """The request that the sequence belongs to."""
        return self._requests.get(sequence_id.rpartition("/")[0])

    def holds(self, tracked: TrackedRequest) -> bool:
        """Whether this very request is still in flight."""
        return self._requests.get(tracked.stream.request.request_id) is tracked

    def add(self, tracked: TrackedRequest) -> None:
        request = tracked.stream.request
        assert request.request_id not in self._requests, "a prepared request is submitted once"
        self._requests[request.request_id] = tracked
        self.idle.clear()
        self.num_waiting += len(tracked.waiting)
        self.num_waiting_prompt_tokens += len(tracked.waiting) * len(request.prompt_token_ids)

    def admit(self, admitted: Admitted) -> None:
        """A sequence has got its place in the batch."""
        if (tracked := self.owner(admitted.sequence_id)) is None:
            return
        if tracked.admitted_time is None:
            tracked.admitted_time = admitted.time
            tracked.stream.num_cached_tokens = admitted.num_cached_tokens
            self._listener.on_admitted(admitted.time - tracked.stream.request.arrival_time)
        self._leave_queue(tracked, admitted.sequence_id)
        tracked.running.add(admitted.sequence_id)
        self.num_running += 1

    def preempt(self, preempted: Preempted) -> None:
        """A sequence has lost its place to others."""
        if (tracked := self.owner(preempted.sequence_id)) is not None:
            tracked.num_preemptions += 1
            if len(tracked.preempted_times) < MAX_PREEMPTION_TIMES:
                tracked.preempted_times += (preempted.time,)

    def resume(self, resumed: Resumed) -> None:
        """A sequence has its place again."""
        tracked = self.owner(resumed.sequence_id)
        if tracked is not None and len(tracked.resumed_times) < MAX_PREEMPTION_TIMES:
            tracked.resumed_times += (resumed.time,)

    def count_tokens(self, output: SequenceOutput, now: float) -> None:
        """Times and counts the tokens of an output, as they came from the engine."""
        count = len(output.token_ids)
        if not count or (tracked := self.owner(output.sequence_id)) is None:
            return
        stream = tracked.stream
        if stream.first_token_time is None:
            stream.first_token_time = now
            self._listener.on_first_token(now - stream.request.arrival_time, len(stream.request.prompt_token_ids))
        last = tracked.last_token_times.get(output.sequence_id)
        if last is not None:
            self._listener.on_inter_token((now - last) / count, count)
        tracked.last_token_times[output.sequence_id] = now
        tracked.num_output_tokens += count
        tracked.output_lengths[output.sequence_id] = tracked.output_lengths.get(output.sequence_id, 0) + count

    def finish_sequence(self, tracked: TrackedRequest, sequence_id: SequenceId, finish_reason: str) -> None:
        """A sequence has finished; with the last one the request leaves."""
        tracked.finish_reasons[sequence_id] = finish_reason
        self._leave_queue(tracked, sequence_id)
        if sequence_id in tracked.running:
            tracked.running.remove(sequence_id)
            self.num_running -= 1
        if tracked.stream.is_done:
            self.close(tracked, "length" if "length" in tracked.finish_reasons.values() else "stop")

    def close(self, tracked: TrackedRequest, finish_reason: str, error: Exception | None = None) -> None:
        """The one way out of the books. error: what ended it, where one did."""
        request = tracked.stream.request
        del self._requests[request.request_id]
        if not self._requests:
            self.idle.set()
        self.num_running -= len(tracked.running)
        tracked.running.clear()
        for sequence_id in list(tracked.waiting):
            self._leave_queue(tracked, sequence_id)
        if tracked.deadline_timer is not None:
            tracked.deadline_timer.cancel()
        record = RequestRecord(
            finish_reason=finish_reason,
            arrival_time=request.arrival_time,
            admitted_time=tracked.admitted_time,
            first_token_time=tracked.stream.first_token_time,
            finish_time=time.monotonic(),
            num_prompt_tokens=len(request.prompt_token_ids),
            num_output_tokens=tracked.num_output_tokens,
            longest_output=max(tracked.output_lengths.values(), default=0),
            n=request.params.n,
            max_tokens=request.params.max_tokens or 0,
            request_id=request.request_id,
            num_cached_tokens=tracked.stream.num_cached_tokens,
            finish_reasons=tuple(tracked.finish_reasons.get(name, finish_reason) for name in tracked.sequence_ids),
            error=None if error is None else type(error).__name__,
            num_preemptions=tracked.num_preemptions,
            preempted_times=tracked.preempted_times,
            resumed_times=tracked.resumed_times,
        )
        self._listener.on_finished(record)
        if tracked.stream.on_end is not None:
            tracked.stream.on_end(record)

    def report_load(self) -> None:
        """Tells the listener the counts."""
        self._listener.on_load(self.num_running, self.num_waiting, self.num_waiting_prompt_tokens)

    def _leave_queue(self, tracked: TrackedRequest, sequence_id: SequenceId) -> None:
        if sequence_id in tracked.waiting:
            tracked.waiting.remove(sequence_id)
            self.num_waiting -= 1
            self.num_waiting_prompt_tokens -= len(tracked.stream.request.prompt_token_ids)
