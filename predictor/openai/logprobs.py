"""Log probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.outputs import PositionLogprobs, TokenLogprob


def completion_logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """The object of `/v1/completions`: four arrays, one entry a returned token.

    top_logprobs[i] maps the text of the most likely tokens to their log probability, and holds the sampled token in
    every case. text_offset[i] counts characters from the start of the choice's text.
    """
    return {
        "tokens": [p.sampled.token for p in positions],
        "token_logprobs": [p.sampled.logprob for p in positions],
        "top_logprobs": [_top_by_text(p) for p in positions],
        "text_offset": [p.text_offset for p in positions],
    }


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """The object of `/v1/chat/completions`: one entry a returned token, each with its exact bytes."""
    return {
        "content": [{**_entry(p.sampled), "top_logprobs": [_entry(token) for token in p.top]} for p in positions],
        "refusal": None,
    }


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.bytes)}


def _top_by_text(position: PositionLogprobs) -> dict[str, float]:
    top: dict[str, float] = {}
    for token in (*position.top, position.sampled):
        # NOTE: two ids may have one text; the more likely one comes first and stays.
        top.setdefault(token.token, token.logprob)
    return top
