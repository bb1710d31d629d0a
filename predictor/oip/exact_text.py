"""The bytes behind a generated text that is not valid UTF-8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
_WINDOW = 256
"""Bytes decoded at a time: an error costs no more than that, however much follows it."""


def exact_bytes(text: str, token_ids: Sequence[int], tokenizer: Tokenizer, *, skip_special_tokens: bool) -> bytes:
    """The bytes that `text` stands for: its UTF-8, with the tokens' own bytes where it has U+FFFD.

    text: what the detokeniser made of token_ids, perhaps cut at a stop string, perhaps without a leading space. Where
    it cannot be laid over the tokens' bytes (the first character began in the prompt), its UTF-8 is the answer.
    """
    if REPLACEMENT not in text:
        return text.encode()
    return ExactText(tokenizer, skip_special_tokens=skip_special_tokens).push(text, token_ids)


class ExactText:
    """`exact_bytes` of a text that comes in pieces, each in time linear in its length."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._ahead: bytes | None = b""
        """Bytes of the tokens so far that are behind no text yet; None once text and bytes have parted."""
        self._is_blank = True
        """Whether the text so far is spaces, so that the one before it which it has not may still be found."""

    def push(self, text: str, token_ids: Sequence[int]) -> bytes:
        """The bytes of the new text. token_ids may run ahead of it."""
        if self._ahead is None:
            return text.encode()
        self._ahead += b"".join(self._tokenizer.token_bytes(i) for i in token_ids if i not in self._skipped)
        for ahead in (self._ahead, self._ahead.removeprefix(b" ")) if self._is_blank else (self._ahead,):
            if (length := _head(ahead, text)) is not None:
                self._ahead = ahead[length:]
                self._is_blank = self._is_blank and not text.strip(" ")
                return ahead[:length]
        self._ahead = None
        return text.encode()


def _head(raw: bytes, text: str) -> int | None:
    """Length of the shortest head of `raw` that decodes, with replacement characters, to `text`."""
    taken, at = 0, 0
    while at < len(text):
        window = raw[taken : taken + _WINDOW]
        num_bad = 0
        try:
            valid = window.decode()
        except UnicodeDecodeError as error:
            valid = window[: error.start].decode()
            # NOTE: a character that the window cuts is whole in the next one.
            is_cut = error.end == _WINDOW and taken + _WINDOW < len(raw)
            num_bad = 0 if is_cut else error.end - error.start
        part = valid[: len(text) - at]
        if not text.startswith(part, at) or not (part or num_bad):
            return None
        at += len(part)
        taken += len(part.encode())
        if num_bad and at < len(text):
            if text[at] != REPLACEMENT:
                return None
            at += 1
            taken += num_bad
    return taken
