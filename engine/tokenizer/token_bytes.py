"""The exact bytes that each token adds to the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ModelLoadError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
Piece = str | bytes
Stage = Callable[[Piece], Piece]


def byte_level_alphabet() -> dict[str, int]:
    """Character to byte of GPT-2's byte-level alphabet: printable Latin-1 stands for itself, the other bytes for the
    characters from U+0100 on (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners")."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


@dataclass(slots=True)
class TokenBytes:
    """What a `tokenizers` decoder does, token by token, on bytes.

    NOTE: a text is the concatenated bytes of its tokens read as UTF-8, each malformed run replaced by U+FFFD. That one
    rule holds for byte-level and byte-fallback vocabularies, streamed or not. (The library's ByteFallback step instead
    turns a whole run of byte tokens into U+FFFD when one of its bytes is bad, which could be known only at the run's
    end, after its good characters have been streamed.)

    stages: applied in order to the vocabulary's string of a token.
    separator: put before every token but the first (a tokenizer with no decoder joins with spaces).
    first_drops: a replacement character that is dropped, not turned into a space, in the first token of a text.
    strip_left: how many leading `strip_byte`s a text loses.
    """

    stages: tuple[Stage, ...] = ()
    separator: bytes = b""
    first_drops: str | None = None
    strip_left: int = 0
    strip_byte: bytes = b" "
    _alphabet: dict[str, int] = field(default_factory=byte_level_alphabet)

    def of(self, token: str, *, is_added: bool) -> bytes:
        """Bytes of a token anywhere but at the start of a text. is_added: it is an added (literal) token."""
        if is_added and self._spells_bytes:
            return token.encode()
        return self.separator + self._run(token)

    def of_first(self, token: str, *, is_added: bool) -> bytes:
        """Bytes of a token at the start of a text, before `strip_left`."""
        if is_added and self._spells_bytes:
            return token.encode()
        return self._run(token.replace(self.first_drops, "") if self.first_drops else token)

    @property
    def _spells_bytes(self) -> bool:
        # NOTE: in a byte-level vocabulary an added token is plain text, not spelled in the byte alphabet.
        return self._byte_level in self.stages

    def _run(self, token: str) -> bytes:
        piece: Piece = token
        for stage in self.stages:
            piece = stage(piece)
        return piece.encode() if isinstance(piece, str) else piece

    def _byte_level(self, piece: Piece) -> Piece:
        if isinstance(piece, bytes):
            return piece
        try:
            return bytes([self._alphabet[char] for char in piece])
        except KeyError:
            return piece

    @classmethod
    def compile(cls, decoder: Mapping[str, Any] | None) -> TokenBytes:
        """From the `decoder` entry of a tokenizer.json. Raises `ModelLoadError` for a decoder not known here."""
        self = cls()
        if decoder is None:
            self.separator = b" "
            return self
        stages: list[Stage] = []
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        fused = False
        for step in steps:
            kind = step["type"]
            if kind == "ByteLevel":
                stages.append(self._byte_level)
            elif kind == "ByteFallback":
                stages.append(_byte_fallback)
            elif kind == "Fuse":
                fused = True
            elif kind == "Replace" and "String" in step["pattern"]:
                stages.append(_replace(step["pattern"]["String"], step["content"]))
            elif kind == "Metaspace":
                stages.append(_replace(step["replacement"], " "))
                if step.get("prepend_scheme", "always") != "never":
                    self.first_drops = step["replacement"]
            elif kind == "Strip" and fused and step["stop"] == 0 and len(step["content"].encode()) == 1:
                self.strip_left = step["start"]
                self.strip_byte = step["content"].encode()
            else:
                raise ModelLoadError(
                    f"the tokenizer's decoder step {kind} ({step}) is not supported; byte-level, byte-fallback and "
                    "Metaspace tokenizers are"
                )
        self.stages = tuple(stages)
        return self


def _replace(old: str, new: str) -> Stage:
    return lambda piece: piece.replace(old, new) if isinstance(piece, str) else piece


def _byte_fallback(piece: Piece) -> Piece:
    if isinstance(piece, str) and (match := BYTE_TOKEN.fullmatch(piece)):
        return bytes([int(match[1], 16)])
    return piece
