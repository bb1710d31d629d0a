"""The whole results of a response that is not streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.outputs import RequestOutput
from predictor.openai.usage import Usage

if TYPE_CHECKING:
    from engine.streams import GenerationStream


async def collect_all(streams: Sequence[GenerationStream]) -> tuple[list[RequestOutput], Usage]:
    """Waits for every stream. What still runs is aborted when one fails or the caller is cancelled.

    NOTE: they are read beside each other: a stream that nobody reads is a slow reader's.
    """
    try:
        results = await asyncio.gather(*(stream.collect() for stream in streams))
    finally:
        for stream in streams:
            stream.abort()
    usage = Usage.of(streams)
    usage.completion_tokens = sum(len(output.token_ids) for result in results for output in result.outputs)
    usage.read_cached(streams)
    return results, usage
