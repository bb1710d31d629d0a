"""One generated sequence on its way to the caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import FinishReason, RawLogprobs, SequenceOutput
from engine.output.detokenizer import Detokenizer
from engine.output.stop_strings import StopStrings
from engine.outputs import PositionLogprobs, SequenceDelta, TokenLogprob
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _HeldToken:
    token_id: int
    text_offset: int
    logprobs: PositionLogprobs | None


class SequenceText:
    """Collects the tokens of one sequence and lets text go as soon as it cannot be part of a stop string.

    NOTE: tokens travel with their text. A token is let go with its first character, and one that shows no text yet (a
    byte of a character, a skipped special token) waits for the next text or the end. So no increment is empty but the
    last, and when a stop string cuts the text, exactly the tokens whose text starts before the cut are returned: ids,
    log probabilities and text agree. The tokens of the stop string itself were generated but are not returned, save
    one that the cut goes through.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        tokenizer: Tokenizer | None,
        stops: StopStrings | None,
    ) -> None:
        """stops: None where the request has no stop strings. tokenizer: None gives ids and no text."""
        assert tokenizer is not None or stops is None
        self._index = index
        self._params = params
        self._tokenizer = tokenizer
        self._detokenizer = (
            None if tokenizer is None else Detokenizer(tokenizer, prompt_ids, params.skip_special_tokens)
        )
        self._stops = stops
        self._stop_state = StopStrings.START
        self._held_text = ""
        self._held_tokens: deque[_HeldToken] = deque()
        self._num_released = 0  # characters
        self._num_tokens = 0

    def take(self, output: SequenceOutput) -> SequenceDelta | None:
        """Takes new tokens; returns the increment to send, if there is one.

        An increment with a finish reason is the last: "stop" with a string as `stop_reason` if a stop string ended the
        sequence here, whatever the engine made of it.
        """
        for position, token_id in enumerate(output.token_ids):
            raw = None if output.logprobs is None else output.logprobs[position]
            is_stop_token = output.stop_token_id is not None and position == len(output.token_ids) - 1
            stop = self._add_token(token_id, raw, is_shown=not is_stop_token or self._params.include_stop_str_in_output)
            if stop is not None:
                return self._last("stop", stop)
        if output.finish_reason is None:
            return self._increment()
        if self._detokenizer is not None and (stop := self._add_text(self._detokenizer.finish())) is not None:
            return self._last("stop", stop)
        is_listed = output.stop_token_id in self._params.stop_token_ids
        return self._last(output.finish_reason, output.stop_token_id if is_listed else None)

    def _add_token(self, token_id: int, raw: RawLogprobs | None, *, is_shown: bool) -> str | None:
        """Appends a token; returns the stop string that it completes."""
        text, text_offset = "", 0
        if self._detokenizer is not None:
            text_offset = self._detokenizer.num_chars
            if is_shown:
                text = self._detokenizer.push(token_id)
                text_offset = self._detokenizer.token_offset
        self._num_tokens += 1
        self._held_tokens.append(_HeldToken(token_id, text_offset, self._position_logprobs(raw, text_offset)))
        return self._add_text(text)

    def _add_text(self, text: str) -> str | None:
        """Appends text; where a stop string is complete, cuts text and tokens and returns it."""
        num_before = len(self._held_text)
        self._held_text += text
        if self._stops is None or not text:
            return None
        may_stop = self._num_tokens >= self._params.min_tokens
        self._stop_state, match = self._stops.scan(self._stop_state, text, may_stop=may_stop)
        if match is None:
            return None
        keep = num_before + match.end
        if not self._params.include_stop_str_in_output:
            keep -= len(match.stop)
        self._held_text = self._held_text[:keep]
        cut = self._num_released + keep
        while self._held_tokens and self._held_tokens[-1].text_offset >= cut:
            self._held_tokens.pop()
        return match.stop

    def _increment(self) -> SequenceDelta | None:
        if self._detokenizer is None:
            return self._delta("", self._take_tokens(None)) if self._held_tokens else None
        num_held = 0 if self._stops is None else self._stops.num_held(self._stop_state)
        free = len(self._held_text) - num_held
        if free <= 0:
            return None
        text, self._held_text = self._held_text[:free], self._held_text[free:]
        self._num_released += free
        return self._delta(text, self._take_tokens(self._num_released))

    def _take_tokens(self, end: int | None) -> list[_HeldToken]:
        """The held tokens whose text starts before `end` (all with None), no longer held."""
        tokens = []
        while self._held_tokens and (end is None or self._held_tokens[0].text_offset < end):
            tokens.append(self._held_tokens.popleft())
        return tokens

    def _last(self, reason: FinishReason, stop_reason: int | str | None) -> SequenceDelta:
        return self._delta(self._held_text, self._take_tokens(None), reason, stop_reason)

    def _delta(
        self,
        text: str,
        tokens: Sequence[_HeldToken],
        reason: FinishReason | None = None,
        stop_reason: int | str | None = None,
    ) -> SequenceDelta:
        logprobs = None
        if self._params.logprobs is not None:
            logprobs = tuple(token.logprobs for token in tokens if token.logprobs is not None)
        return SequenceDelta(
            self._index, text, tuple(token.token_id for token in tokens), logprobs, reason, stop_reason
        )

    def _position_logprobs(self, raw: RawLogprobs | None, text_offset: int) -> PositionLogprobs | None:
        if raw is None:
            return None
        return PositionLogprobs(
            self._token_logprob(raw.token_id, raw.logprob),
            tuple(self._token_logprob(i, p) for i, p in zip(raw.top_ids, raw.top_logprobs, strict=True)),
            text_offset,
        )

    def _token_logprob(self, token_id: int, logprob: float) -> TokenLogprob:
        if self._tokenizer is None:
            return TokenLogprob(token_id, logprob, "", b"")
        return TokenLogprob(
            token_id, logprob, self._tokenizer.token_text(token_id), self._tokenizer.token_bytes(token_id)
        )
