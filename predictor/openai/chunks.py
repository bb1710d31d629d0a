"""Chunks of a streamed response, joined from pieces that are encoded once a response.

Every chunk but the last of its index has `finish_reason: null`; the last has a reason.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from engine.outputs import SequenceDelta
from predictor.openai.envelope import Envelope
from predictor.openai.logprobs import chat_logprobs, completion_logprobs

encode = msgspec.json.Encoder().encode

EVENT_START, EVENT_END = b"data: ", b"\n\n"
DONE = b"data: [DONE]\n\n"


class ChunkWriter(Protocol):
    """Makes the events of one response. `usage`: the bytes that follow the choices, see `UsageReport`."""

    def opening(self, index: int, usage: bytes) -> bytes:
        """What comes before the first delta of an index; may be empty."""
        ...

    def chunk(self, index: int, delta: SequenceDelta, usage: bytes) -> bytes:
        """The event of one delta; empty where the delta has nothing to tell."""
        ...

    def last(self, usage: bytes) -> bytes:
        """The event with usage and no choices."""
        ...


class _Frame:
    """The constant parts around a chunk's choices."""

    def __init__(self, envelope: Envelope, kind: str) -> None:
        self.head = EVENT_START + encode(envelope.as_dict(kind))[:-1] + b',"choices":['

    def event(self, choice: bytes, usage: bytes) -> bytes:
        return b"".join((self.head, choice, b"]", usage, b"}", EVENT_END))


class CompletionChunks:
    """Chunks of `/v1/completions`. echoes[i]: prompt text that opens choice i."""

    def __init__(self, envelope: Envelope, echoes: dict[int, str] | None = None) -> None:
        self._frame = _Frame(envelope, "text_completion")
        self._echoes = echoes or {}

    def opening(self, index: int, usage: bytes) -> bytes:
        echo = self._echoes.get(index)
        return self._event(index, echo, b"null", b"null", usage) if echo else b""

    def chunk(self, index: int, delta: SequenceDelta, usage: bytes) -> bytes:
        if not _tells(delta):
            return b""
        logprobs = b"null" if delta.logprobs is None else encode(completion_logprobs(delta.logprobs))
        return self._event(index, delta.text, logprobs, _finish(delta), usage)

    def last(self, usage: bytes) -> bytes:
        return self._frame.event(b"", usage)

    def _event(self, index: int, text: str, logprobs: bytes, finish: bytes, usage: bytes) -> bytes:
        choice = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}' % (index, encode(text), logprobs, finish)
        return self._frame.event(choice, usage)


class ChatChunks:
    """Chunks of `/v1/chat/completions`: the role first, then content."""

    def __init__(self, envelope: Envelope) -> None:
        self._frame = _Frame(envelope, "chat.completion.chunk")

    def opening(self, index: int, usage: bytes) -> bytes:
        return self._event(index, b'{"role":"assistant","content":""}', b"null", b"null", usage)

    def chunk(self, index: int, delta: SequenceDelta, usage: bytes) -> bytes:
        if not _tells(delta):
            return b""
        content = b'{"content":%b}' % encode(delta.text) if delta.text else b"{}"
        logprobs = b"null" if delta.logprobs is None else encode(chat_logprobs(delta.logprobs))
        return self._event(index, content, logprobs, _finish(delta), usage)

    def last(self, usage: bytes) -> bytes:
        return self._frame.event(b"", usage)

    def _event(self, index: int, content: bytes, logprobs: bytes, finish: bytes, usage: bytes) -> bytes:
        choice = b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (index, content, logprobs, finish)
        return self._frame.event(choice, usage)


def _tells(delta: SequenceDelta) -> bool:
    return bool(delta.text) or delta.finish_reason is not None or bool(delta.logprobs)


def _finish(delta: SequenceDelta) -> bytes:
    """The finish reason, and beside it, as vLLM's users know it, the stop string or id that ended the sequence."""
    if delta.finish_reason is None:
        return b"null"
    return b'%b,"stop_reason":%b' % (encode(delta.finish_reason), encode(delta.stop_reason))
