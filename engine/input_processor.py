"""The door of the engine: turns a prompt and its parameters into a request that cannot fail inside."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from engine.brief import brief
from engine.errors import ContextLengthError, InvalidParameterError, InvalidPromptError
from engine.inputs import EncodedPrompt, GenerationRequest
from engine.messages import ModelInfo
from engine.sampling_params import SamplingParams

MAX_CHARACTERS_PER_TOKEN = 256
"""No vocabulary in use has a longer token; a longer text is refused before it is tokenised."""


class TextEncoder(Protocol):
    """The part of a tokenizer the door needs."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class InputProcessor:
    """Checks and completes requests for one loaded model."""

    def __init__(self, tokenizer: TextEncoder | None, info: ModelInfo) -> None:
        self._tokenizer = tokenizer
        self._info = info

    def encode(self, text: str, *, add_special_tokens: bool = True) -> EncodedPrompt:
        """A text turned into token ids, for `prepare`. Takes long for a long text; may run on any thread.

        Raises `InvalidPromptError` or `ContextLengthError`.
        """
        return EncodedPrompt(text, self._encode(text, add_special_tokens))

    def prepare(
        self,
        prompt: str | EncodedPrompt | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> GenerationRequest:
        """A request ready to submit.

        prompt: text (tokenised with the model's own special tokens), one encoded before, or token ids.
        request_id: the caller's name for it, which becomes the head of a unique id.
        deadline: a reading of `time.monotonic()`, or None.

        max_tokens is clamped to what the context leaves (None means all of it), and min_tokens with it.

        Raises `InvalidPromptError`, `InvalidParameterError` or `ContextLengthError`.
        """
        arrival_time = time.monotonic()
        if isinstance(prompt, str):
            prompt = self.encode(prompt)
        if isinstance(prompt, EncodedPrompt):
            text, token_ids = prompt.text, prompt.token_ids
        else:
            text, token_ids = None, self._check_ids(prompt)
        self._check_vocabulary(params)
        room = self._room(len(token_ids))
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        if max_tokens != params.max_tokens:
            params = replace(params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens))
        return GenerationRequest(
            request_id=_unique_id(request_id),
            prompt=text,
            prompt_token_ids=token_ids,
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            arrival_time=arrival_time,
            deadline=deadline,
        )

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        if self._tokenizer is None:
            raise InvalidPromptError("this engine has no tokenizer: give the prompt as token ids", param="prompt")
        if len(text) > self._info.max_model_len * MAX_CHARACTERS_PER_TOKEN:
            raise ContextLengthError(
                f"the prompt has {len(text)} characters, more than {self._info.max_model_len} tokens can hold; "
                "shorten it",
                param="prompt",
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidPromptError(f"the prompt is not valid Unicode text: {error}", param="prompt") from None
        token_ids = tuple(self._tokenizer.encode(text, add_special_tokens))
        if not token_ids:
            raise InvalidPromptError("the prompt is empty: give at least one token", param="prompt")
        # NOTE: a tokenizer may know added tokens that the model has no embedding for.
        if (highest := max(token_ids)) >= self._info.vocab_size:
            raise InvalidPromptError(
                f"the prompt holds token id {highest}, which the tokenizer knows and the model does not: "
                f"its vocabulary ends at {self._info.vocab_size - 1}",
                param="prompt",
            )
        return token_ids

    def _check_ids(self, prompt: Sequence[int]) -> tuple[int, ...]:
        # NOTE: bytes are a sequence of integers, but nobody means them as token ids.
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise InvalidPromptError(
                f"a prompt must be text or a list of token ids, got {brief(prompt)}", param="prompt"
            )
        if not prompt:
            raise InvalidPromptError("the prompt is empty: give at least one token", param="prompt")
        self._room(len(prompt))  # before the ids are looked at, which takes long where they are many
        token_ids = tuple(prompt)
        vocab_size = self._info.vocab_size
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise InvalidPromptError(
                    f"a prompt of token ids must hold integers, got {brief(token_id)}", param="prompt"
                )
            if not 0 <= token_id < vocab_size:
                raise InvalidPromptError(
                    f"token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})", param="prompt"
                )
        return token_ids

    def _check_vocabulary(self, params: SamplingParams) -> None:
        for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias)):
            for token_id in ids:
                if token_id >= self._info.vocab_size:
                    raise InvalidParameterError(
                        f"{name} names token id {token_id}, outside the vocabulary (0 to {self._info.vocab_size - 1})",
                        param=name,
                    )

    def _room(self, num_prompt_tokens: int) -> int:
        """New tokens that still fit; at least 1. `max_model_len` never exceeds what the KV pool holds."""
        room = self._info.max_model_len - num_prompt_tokens
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens} tokens; the context is {self._info.max_model_len} tokens and "
                f"must leave room for at least one new token: shorten the prompt to at most "
                f"{self._info.max_model_len - 1}",
                param="prompt",
            )
        return room


def _unique_id(name: str | None) -> str:
    """Two requests in flight may carry the same name from outside; inside they never share an id."""
    unique = uuid.uuid4().hex
    return f"{name}-{unique[:12]}" if name else unique
