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
        "tokens": [_legacy_text(p.sampled) for p in positions],
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
    return {"token": _escaped(token) or token.token, "logprob": token.logprob, "bytes": list(token.bytes)}


def _top_by_text(position: PositionLogprobs) -> dict[str, float]:
    top: dict[str, float] = {}
    for token in (*position.top, position.sampled):
        # NOTE: two ids may have one text; the more likely one comes first and stays.
        top.setdefault(_legacy_text(token), token.logprob)
    return top


def _legacy_text(token: TokenLogprob) -> str:
    escaped = _escaped(token)
    return f"bytes:{escaped}" if escaped else token.token


def _escaped(token: TokenLogprob) -> str | None:
    r"""`\xc4`-style text of a token that is no whole character by itself, as OpenAI shows it; else None."""
    try:
        token.bytes.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return None
