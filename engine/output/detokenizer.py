"""Text of a growing sequence, token by token."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from engine.tokenizer import Tokenizer

LONGEST_UNFINISHED = 3  # bytes of a UTF-8 character that can be there without its last one


class Detokenizer:
    """Turns the generated ids of one sequence into text as they come, in O(1) a token.

    NOTE: the output continues the prompt. For prompt ids P and output ids O, the pieces that `push` and `finish` give
    add up to what decode(P + O) has after decode(P), with the same `skip_special_tokens`; with P empty, or all of it
    skipped, that is decode(O). So a leading space is kept after a prompt and stripped only where decode() would.

    NOTE: where the prompt ends inside a character, its bytes there are no text of the prompt yet. If the output goes on
    with that character, the whole character belongs to the output, and nothing before it does. If it does not, the
    stray bytes stay the prompt's, and the output says nothing of them.

    num_chars: characters of the output so far.
    token_offset: characters of the output before the text of the token pushed last.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        self.num_chars = 0
        self.token_offset = 0
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._at_start = True
        self._strip_limit: int | None = None
        self._read_start(prompt_ids)
        self._unfinished = self._unfinished_tail(prompt_ids)
        self._is_prompts = bool(self._unfinished)

    def push(self, token_id: int) -> str:
        """The text that is certain now: complete characters only, so often "" after a byte token."""
        self.token_offset = self.num_chars
        data = self._visible_bytes(token_id)
        if data and self._strip_limit != 0:
            data, self._strip_limit = self._tokenizer.strip_start(data, self._strip_limit)
        if not data:
            return ""
        if self._unfinished and not _is_unfinished_or_whole(self._unfinished + data[:1]):
            if self._is_prompts:
                self._unfinished = b""
            else:
                self.token_offset += 1  # past the U+FFFD of the tokens before
        self._is_prompts = False
        data = self._unfinished + data
        text, num_read = codecs.utf_8_decode(data, "replace", False)
        self._unfinished = data[num_read:]
        self.num_chars += len(text)
        return text

    def finish(self) -> str:
        """U+FFFD if the output ends inside a character, else ""."""
        if not self._unfinished or self._is_prompts:
            return ""
        self._unfinished = b""
        self.num_chars += 1
        return "\N{REPLACEMENT CHARACTER}"

    def _visible_bytes(self, token_id: int) -> bytes:
        if token_id in self._skipped:
            return b""
        data = self._tokenizer.token_bytes(token_id)
        if data and self._at_start:
            self._at_start = False
            return self._tokenizer.first_token_bytes(token_id)
        return data

    def _read_start(self, prompt_ids: Sequence[int]) -> None:
        """Reads the prompt as far as the rules for a text's start reach: as a rule, its first visible token."""
        for token_id in prompt_ids:
            if data := self._visible_bytes(token_id):
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
        tail = tail[-LONGEST_UNFINISHED:]
        return tail[codecs.utf_8_decode(tail, "replace", False)[1] :]


def _is_unfinished_or_whole(data: bytes) -> bool:
    """Whether `data` is a character or the beginning of one."""
    try:
        codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return False
    return True
