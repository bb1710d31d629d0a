"""The bytes behind a generated text that is not valid UTF-8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


def exact_bytes(text: str, token_ids: Sequence[int], tokenizer: Tokenizer, *, skip_special_tokens: bool) -> bytes:
    """The bytes that `text` stands for: its UTF-8, with the tokens' own bytes where it has U+FFFD.

    text: what the detokeniser made of token_ids, perhaps cut at a stop string, perhaps without a leading space. Where
    it cannot be laid over the tokens' bytes (the first character began in the prompt), its UTF-8 is the answer.
    """
    if REPLACEMENT not in text:
        return text.encode()
    skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
    raw = b"".join(tokenizer.token_bytes(i) for i in token_ids if i not in skipped)
    for candidate in (raw, raw.removeprefix(b" ")):
        if (exact := _prefix(candidate, text)) is not None:
            return exact
    return text.encode()


class ExactText:
    """`exact_bytes` of a text that comes in pieces; the pieces add up to those of the whole."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._text = ""
        self._token_ids: list[int] = []
        self._given = b""

    def push(self, text: str, token_ids: Sequence[int]) -> bytes:
        """The bytes of the new text. token_ids may run ahead of it."""
        self._text += text
        self._token_ids.extend(token_ids)
        if REPLACEMENT not in self._text:
            piece = text.encode()
        else:
            whole = exact_bytes(
                self._text, self._token_ids, self._tokenizer, skip_special_tokens=self._skip_special_tokens
            )
            piece = whole[len(self._given) :] if whole.startswith(self._given) else text.encode()
        self._given += piece
        return piece


def _prefix(raw: bytes, text: str) -> bytes | None:
    """The shortest head of `raw` that decodes, with replacement characters, to `text`."""
    taken, at = 0, 0
    while at < len(text):
        try:
            valid, bad = raw[taken:].decode(), b""
        except UnicodeDecodeError as error:
            valid, bad = raw[taken : taken + error.start].decode(), raw[taken + error.start : taken + error.end]
        part = valid[: len(text) - at]
        if not text.startswith(part, at):
            return None
        at += len(part)
        taken += len(part.encode())
        if at == len(text):
            break
        if not bad or text[at] != REPLACEMENT:
            return None
        at += 1
        taken += len(bad)
    return raw[:taken]
