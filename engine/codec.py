"""The wire between the front process and the engine process: two frames, a kind and its msgpack body.

msgspec decodes straight into the frozen dataclasses of `engine.messages` and checks their types on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine import messages


class Codec:
    """Encodes and decodes the message types given, in the order given (both ends must agree)."""

    def __init__(self, *types: type) -> None:
        self._kinds = {t: bytes([i]) for i, t in enumerate(types)}
        self._decoders: list[msgspec.msgpack.Decoder[Any]] = [msgspec.msgpack.Decoder(t) for t in types]
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: Any) -> tuple[bytes, bytes]:
        return self._kinds[type(message)], self._encoder.encode(message)

    def decode(self, frames: Sequence[bytes]) -> Any:
        """Raises `msgspec.ValidationError` for a body that does not fit its kind."""
        kind, body = frames
        return self._decoders[kind[0]].decode(body)


def front_codec() -> Codec:
    """For messages from the front to the engine."""
    return Codec(messages.AddSequence, messages.AbortSequences, messages.ResetPrefixCache, messages.Shutdown)


def engine_codec() -> Codec:
    """For messages from the engine to the front."""
    return Codec(messages.LoadProgress, messages.EngineReady, messages.EngineFailed, messages.StepOutputs)
