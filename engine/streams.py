"""The caller's end of one request: deltas as they come, or the whole result."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from engine.errors import PagedServeError, SlowReaderError
from engine.inputs import GenerationRequest
from engine.outputs import CompletionOutput, RequestOutput, SequenceDelta

if TYPE_CHECKING:
    from engine.metrics import RequestRecord

MAX_PENDING_DELTAS = 64
"""A reader this far behind gets the further tokens of a sequence merged into one delta."""

MAX_STREAM_BUFFER = 8192
"""Tokens that may wait for the reader of one stream, unless `--max_stream_buffer` says otherwise. An alternative token
whose log probability is told counts as one too: it takes as much memory."""


class GenerationStream:
    """Deltas of the request's sequences, interleaved as they are generated; ends when all have finished.

    Iterate with `async for`, inside `async with` so that leaving early aborts what still runs. Iterating raises the
    error that ended the request: `EngineDeadError`, `RequestAbortedError` or `DeadlineExceededError`.

    max_pending: tokens that may wait here for a reader that iterates. Beyond them the request is aborted, what waits is
    dropped, and the reader gets `SlowReaderError`. `collect` has no such bound: it is never behind for long.
    """

    def __init__(
        self,
        request: GenerationRequest,
        on_abort: Callable[[GenerationStream], None],
        max_pending: int = MAX_STREAM_BUFFER,
    ) -> None:
        self.request = request
        self.num_cached_tokens = 0
        """Prefix hit of the request's first admitted sequence."""
        self.first_token_time: float | None = None
        self.on_end: Callable[[RequestRecord], None] | None = None
        """Called once, when the request has left the engine, with how it went. Set by whoever submitted it."""
        self._on_abort = on_abort
        self._pending: deque[SequenceDelta] = deque()
        self._num_pending = 0
        self._max_pending = max_pending
        self._has_reader = False
        self._unfinished = request.params.n
        self._error: PagedServeError | None = None
        self._aborted = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come: every sequence finished, an error, or aborted."""
        return self._unfinished == 0 or self._error is not None or self._aborted

    # --- the engine client's side -----------------------------------------------------------------------------------

    def push(self, delta: SequenceDelta) -> None:
        """Adds what a step brought. May abort the request, when its reader is too far behind."""
        if delta.finish_reason is not None:
            self._unfinished -= 1
        self._num_pending += _size(delta)
        # NOTE: what has finished grows no further, and is left for its reader however slow it is.
        if self._has_reader and self._unfinished and self._num_pending > self._max_pending:
            self._give_up()
            return
        if len(self._pending) >= MAX_PENDING_DELTAS:
            self._merge(delta)
        else:
            self._pending.append(delta)
        self._wake()

    def fail(self, error: PagedServeError) -> None:
        """Ends the stream with an error, after the deltas that came before it."""
        if not self.is_done:
            self._error = error
            self._wake()

    def _give_up(self) -> None:
        self._pending.clear()
        self._num_pending = 0
        self._on_abort(self)
        self.fail(
            SlowReaderError(
                f"the request was aborted: more than {self._max_pending} tokens waited for its client to read them; "
                "read the stream faster, or generate without streaming"
            )
        )

    def _merge(self, delta: SequenceDelta) -> None:
        for position in range(len(self._pending) - 1, -1, -1):
            earlier = self._pending[position]
            if earlier.index == delta.index:
                logprobs = None if delta.logprobs is None else (earlier.logprobs or ()) + delta.logprobs
                self._pending[position] = SequenceDelta(
                    delta.index,
                    earlier.text + delta.text,
                    earlier.token_ids + delta.token_ids,
                    logprobs,
                    delta.finish_reason,
                    delta.stop_reason,
                )
                return
        self._pending.append(delta)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- the caller's side ------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Gives the request up; does nothing once it is done. What is still pending is not delivered."""
        if not self.is_done:
            self._aborted = True
            self._on_abort(self)
            self._wake()

    def __aiter__(self) -> GenerationStream:
        return self

    async def __anext__(self) -> SequenceDelta:
        self._has_reader = True
        return await self._next()

    async def _next(self) -> SequenceDelta:
        while True:
            if self._aborted:
                raise StopAsyncIteration
            if self._pending:
                delta = self._pending.popleft()
                self._num_pending -= _size(delta)
                return delta
            if self._error is not None:
                raise self._error
            if self._unfinished == 0:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def __aenter__(self) -> GenerationStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()

    async def collect(self) -> RequestOutput:
        """Waits for the end and returns the whole; aborts the request when cancelled. Raises as iterating does."""
        async with self:
            outputs = [CompletionOutput(index) for index in range(self.request.params.n)]
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    delta = await self._next()
                    outputs[delta.index].append(delta)
            return RequestOutput(
                self.request.request_id,
                self.request.prompt,
                list(self.request.prompt_token_ids),
                outputs,
                self.num_cached_tokens,
            )


def _size(delta: SequenceDelta) -> int:
    return len(delta.token_ids) + sum(len(position.top) for position in delta.logprobs or ())
