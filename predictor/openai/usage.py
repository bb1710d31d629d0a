"""Token counts of a response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from engine.outputs import RequestOutput
    from engine.streams import GenerationStream


@dataclass(slots=True)
class Usage:
    """prompt_tokens: of every prompt once, however many sequences it has. completion_tokens: of every sequence.

    cached_tokens: prompt tokens whose KV came from the prefix cache.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0

    @classmethod
    def of(cls, streams: Sequence[GenerationStream], results: Sequence[RequestOutput] = ()) -> Usage:
        """Usage of the streams with these results, or with nothing generated yet."""
        usage = cls(
            prompt_tokens=sum(len(stream.request.prompt_token_ids) for stream in streams),
            completion_tokens=sum(len(output.token_ids) for result in results for output in result.outputs),
        )
        usage.read_cached(streams)
        return usage

    def read_cached(self, streams: Sequence[GenerationStream]) -> None:
        """Takes over the prefix hits; they are known once a stream has given its first token."""
        self.cached_tokens = sum(stream.num_cached_tokens for stream in streams)

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def as_json(self) -> bytes:
        return msgspec.json.encode(self.as_dict())
