"""Several engine streams read as one, only as fast as the reader takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.outputs import SequenceDelta

if TYPE_CHECKING:
    from engine.streams import GenerationStream

MAX_BUFFERED = 64
"""Deltas read ahead of a slow client; behind it the engine's streams merge what waits."""

Batch = list[tuple[int, SequenceDelta]]


class DeltaFeed:
    """The deltas of a response's streams, in the order in which they come, as (choice index, delta).

    Choice indices are prompt-major: those of prompt p start at the sum of n over the prompts before it.
    """

    def __init__(self, streams: Sequence[GenerationStream]) -> None:
        self._streams = streams
        self._buffer: Batch = []
        self._error: Exception | None = None
        self._open = len(streams)
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        # NOTE: one stream of one sequence gives one delta at a time: it is read directly, with no task between.
        self._direct = streams[0] if len(streams) == 1 and streams[0].request.params.n == 1 else None
        self._pumps: list[asyncio.Task[None]] = []

    async def next_batch(self) -> Batch:
        """Every delta that is ready, at least one; an empty list at the end. Raises as the streams do."""
        if self._direct is not None:
            async for delta in self._direct:
                return [(0, delta)]
            return []
        if not self._pumps:
            self._start_pumps()
        while not self._buffer and self._error is None and self._open:
            self._changed.clear()
            await self._changed.wait()
        if self._buffer:
            batch, self._buffer = self._buffer, []
            self._has_room.set()
            return batch
        if self._error is not None:
            raise self._error
        return []

    def close(self) -> None:
        """Aborts what still runs. Idempotent."""
        for pump in self._pumps:
            pump.cancel()
        for stream in self._streams:
            stream.abort()

    def _start_pumps(self) -> None:
        start = 0
        for stream in self._streams:
            self._pumps.append(asyncio.get_running_loop().create_task(self._pump(stream, start)))
            start += stream.request.params.n

    async def _pump(self, stream: GenerationStream, start: int) -> None:
        try:
            async for delta in stream:
                self._buffer.append((start + delta.index, delta))
                self._changed.set()
                if len(self._buffer) >= MAX_BUFFERED:
                    self._has_room.clear()
                    await self._has_room.wait()
        except Exception as error:
            self._error = error
        finally:
            self._open -= 1
            self._changed.set()
