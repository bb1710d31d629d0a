"""Admission: how much may wait for the engine, decided in one synchronous place."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.errors import InvalidParameterError, OverloadedError
from engine.inputs import GenerationRequest

RATE_WINDOW_SECONDS = 30.0
RATE_SAMPLE_SECONDS = 0.1
UNKNOWN_RATE_RETRY_SECONDS = 5.0
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0


class WaitingQueue(Protocol):
    """What admission reads of the engine client: sequences accepted and not yet in the batch."""

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_waiting_prompt_tokens(self) -> int: ...


class Admission:
    """Bounds the sequences and the prompt tokens that wait for the engine.

    A request with n > 1 counts as n waiting sequences. A prompt that alone is longer than `max_waiting_tokens` is
    taken only while nothing waits, so that it can be served at all.

    NOTE: `check` decides and the caller submits at once, with no await between: two requests can never both take the
    last place.
    """

    def __init__(
        self,
        queue: WaitingQueue,
        *,
        max_waiting_requests: int,
        max_waiting_tokens: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self.max_waiting_requests = max_waiting_requests
        self.max_waiting_tokens = max_waiting_tokens
        self._clock = clock
        self._num_accepted = 0
        self._departures: deque[tuple[float, int]] = deque()

    def check(self, requests: Sequence[GenerationRequest]) -> None:
        """Takes all of `requests` or none.

        Raises `OverloadedError` with reason `waiting_requests` or `waiting_tokens`, or `InvalidParameterError` where
        the batch is larger than the queue could ever be.
        """
        self._sample()
        num_sequences = sum(request.params.n for request in requests)
        num_tokens = sum(request.params.n * len(request.prompt_token_ids) for request in requests)
        self.check_size(num_sequences)
        waiting = self.queue.num_waiting
        if waiting + num_sequences > self.max_waiting_requests:
            raise self._overloaded(
                "waiting_requests", f"{waiting} requests are waiting and the bound is {self.max_waiting_requests}"
            )
        waiting_tokens = self.queue.num_waiting_prompt_tokens
        if self.max_waiting_tokens is not None and waiting and waiting_tokens + num_tokens > self.max_waiting_tokens:
            raise self._overloaded(
                "waiting_tokens",
                f"{waiting_tokens} prompt tokens are waiting and the bound is {self.max_waiting_tokens}",
            )
        self._num_accepted += num_sequences

    def check_size(self, num_sequences: int) -> None:
        """Raises `InvalidParameterError` for more sequences than the queue could ever hold."""
        if num_sequences > self.max_waiting_requests:
            raise InvalidParameterError(
                f"this request holds {num_sequences} sequences (prompts × n) and the server queues at most "
                f"{self.max_waiting_requests}; send fewer at a time",
                param="n",
            )

    def check_room(self, more: int, underway: int) -> None:
        """Raises as `check` where `more` sequences do not fit, before any work is spent on them.

        underway: sequences that wait outside the queue.
        """
        self.check_size(more)
        waiting = self.queue.num_waiting + underway
        if waiting + more > self.max_waiting_requests:
            raise self._overloaded(
                "waiting_requests", f"{waiting} requests are waiting and the bound is {self.max_waiting_requests}"
            )

    def retry_after(self) -> float:
        """Whole seconds after which half of today's queue will have left it at the rate of the last 30 s."""
        now, departed = self._clock(), self._num_accepted - self.queue.num_waiting
        then, before = self._departures[0] if self._departures else (now, departed)
        if now <= then or departed <= before:
            return UNKNOWN_RATE_RETRY_SECONDS
        rate = (departed - before) / (now - then)
        return float(math.ceil(min(MAX_RETRY_SECONDS, max(MIN_RETRY_SECONDS, self.queue.num_waiting / 2 / rate))))

    def _overloaded(self, reason: str, state: str) -> OverloadedError:
        seconds = self.retry_after()
        return OverloadedError(
            f"the server is overloaded: {state}; try again in {seconds:.0f} s", reason=reason, retry_after=seconds
        )

    def _sample(self) -> None:
        # NOTE: what was accepted and no longer waits has left the queue, be it to the batch or by an abort: the
        # difference of the two counts is all that the rate needs.
        now = self._clock()
        if not self._departures or now - self._departures[-1][0] >= RATE_SAMPLE_SECONDS:
            self._departures.append((now, self._num_accepted - self.queue.num_waiting))
        while now - self._departures[0][0] > RATE_WINDOW_SECONDS:
            self._departures.popleft()
