"""The whole results of a request whose answer is not streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.outputs import RequestOutput

if TYPE_CHECKING:
    from engine.streams import GenerationStream


async def collect_all(streams: Sequence[GenerationStream]) -> list[RequestOutput]:
    """Reads every stream to its end, all beside each other.

    What still runs is aborted when one fails, whose error is raised, or when the caller is cancelled.
    """
    try:
        return await asyncio.gather(*(stream.collect() for stream in streams))
    finally:
        for stream in streams:
            stream.abort()
