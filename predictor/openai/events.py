"""The body of a streamed response: server-sent events, ended by `[DONE]` or by an error event."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from engine.errors import PagedServeError
from predictor.disconnect import WatchedStreamingResponse, run_until_disconnect
from predictor.openai.chunks import DONE, EVENT_END, EVENT_START, ChunkWriter
from predictor.openai.errors import error_body
from predictor.openai.feed import Batch, DeltaFeed
from predictor.openai.types import StreamOptions
from predictor.openai.usage import Usage

if TYPE_CHECKING:
    from engine.streams import GenerationStream

logger = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream; charset=utf-8"


class UsageReport:
    """What `stream_options` asks for: usage at the end, or so far on every chunk, or none."""

    def __init__(self, options: StreamOptions | None, usage: Usage, streams: Sequence[GenerationStream] = ()) -> None:
        self.at_end = options is not None and bool(options.include_usage)
        self._running = self.at_end and options is not None and bool(options.continuous_usage_stats)
        self._usage = usage
        self._streams = streams

    def count(self, num_tokens: int) -> bytes:
        """Adds tokens; the bytes that follow the choices of the chunk that brings them."""
        self._usage.completion_tokens += num_tokens
        if self._running:
            return self.total()
        return b',"usage":null' if self.at_end else b""

    def total(self) -> bytes:
        """The same with usage so far."""
        self._usage.read_cached(self._streams)
        return b',"usage":' + self._usage.as_json()


async def stream_response(
    http: Request,
    streams: Sequence[GenerationStream],
    writer: ChunkWriter,
    options: StreamOptions | None,
    headers: dict[str, str],
) -> Response:
    """Streams the deltas of `streams` as they come; they are aborted when the client goes away.

    Returns once the first delta is there, so that what fails before it is raised and gets a proper status.
    """
    feed = DeltaFeed(streams)
    try:
        first = await run_until_disconnect(http, feed.next_batch())
        events = _events(feed, first, streams, writer, UsageReport(options, Usage.of(streams), streams))
        # NOTE: a generator that was never started runs no `finally` when it is closed: its first, empty item is taken
        # here, so that from now on closing it aborts the streams.
        await anext(events)
    except BaseException:
        feed.close()
        raise
    return WatchedStreamingResponse(events, headers=headers, media_type=EVENT_STREAM)


async def _events(
    feed: DeltaFeed,
    batch: Batch,
    streams: Sequence[GenerationStream],
    writer: ChunkWriter,
    usage: UsageReport,
) -> AsyncGenerator[bytes, None]:
    try:
        yield b""
        opened = b"".join(
            writer.opening(index, usage.count(0)) for index in range(sum(s.request.params.n for s in streams))
        )
        while batch:
            # NOTE: one event a delta, and one write for all that is ready.
            events = [writer.chunk(index, delta, usage.count(len(delta.token_ids))) for index, delta in batch]
            if data := opened + b"".join(events):
                opened = b""
                yield data
            batch = await feed.next_batch()
        yield (writer.last(usage.total()) if usage.at_end else b"") + DONE
    except PagedServeError as error:
        yield _error_event(error)
    except Exception as error:
        logger.exception("A stream failed")
        yield _error_event(error)
    finally:
        feed.close()


def _error_event(error: Exception) -> bytes:
    return EVENT_START + error_body(error) + EVENT_END
