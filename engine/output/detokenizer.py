"""Text of a growing sequence, token by token."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from engine.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")
LONGEST_UNFINISHED = 3  # bytes of a UTF-8 character that can be there without its last one


class Detokenizer:
    """Turns the generated ids of one sequence into text as they come, in O(1) a token.

    NOTE: the output continues the prompt. For prompt ids P and output ids O, the pieces that `push` and `finish` give
    add up to what decode(P + O) has after decode(P), with the same `skip_special_tokens`; with P empty, or all of it
    skipped, that is decode(O). So a leading space is kept after a prompt and stripped only where decode() would.

    NOTE: where the prompt ends inside a character, its bytes there are no text of the prompt yet. If the output goes on
    with that character, the whole character belongs to the output, and nothing before it does. If it does not, the
    stray bytes stay the prompt's, and the output says nothing of them.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._utf8 = _UTF8("replace")
        self._at_start = True
        self._strip_limit: int | None = None
        self._read_start(prompt_ids)
        self._prompt_bytes = self._unfinished_tail(prompt_ids)

    def push(self, token_id: int) -> str:
        """The text that is certain now: complete characters only, so often "" after a byte token."""
        data = self._bytes(token_id)
        if not data:
            return ""
        if self._strip_limit != 0:
            data, self._strip_limit = self._tokenizer.strip_start(data, self._strip_limit)
            if not data:
                return ""
        if self._prompt_bytes:
            if _goes_on(self._prompt_bytes, data):
                data = self._prompt_bytes + data
            self._prompt_bytes = b""
        return self._utf8.decode(data)

    def finish(self) -> str:
        """U+FFFD if the output ends inside a character, else ""."""
        return self._utf8.decode(b"", final=True)

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._skipped:
            return b""
        data = self._tokenizer.token_bytes(token_id)
        if data and self._at_start:
            self._at_start = False
            return self._tokenizer.first_token_bytes(token_id)
        return data

    def _read_start(self, prompt_ids: Sequence[int]) -> None:
        """Runs over the prompt until nothing of a text's start is left to treat: as a rule, its first visible token."""
        for token_id in prompt_ids:
            if data := self._bytes(token_id):
                _, self._strip_limit = self._tokenizer.strip_start(data, self._strip_limit)
            if self._strip_limit == 0:
                return

    def _unfinished_tail(self, prompt_ids: Sequence[int]) -> bytes:
        tail = b""
        for token_id in reversed(prompt_ids):
            if token_id not in self._skipped:
                tail = self._tokenizer.token_bytes(token_id) + tail
            if len(tail) >= LONGEST_UNFINISHED:
                break
        utf8 = _UTF8("replace")
        utf8.decode(tail[-LONGEST_UNFINISHED:])
        return utf8.getstate()[0]


def _goes_on(unfinished: bytes, data: bytes) -> bool:
    """Whether the first byte of `data` is one more byte of the character that `unfinished` begins."""
    try:
        _UTF8("strict").decode(unfinished + data[:1])
    except UnicodeDecodeError:
        return False
    return True
