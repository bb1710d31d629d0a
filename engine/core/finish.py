"""When a sequence ends by its tokens. (Stop strings need text, which the engine core has not: see engine.output.)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.core.request import Request
from engine.messages import FinishReason


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended. stop_token_id: the EOS or stop id that ended it, the last of its tokens, else None."""

    reason: FinishReason
    stop_token_id: int | None = None


class FinishRules:
    """EOS and stop ids (not before `min_tokens`), then `max_tokens` and the context length, prompt and output."""

    def __init__(self, eos_token_ids: Iterable[int], max_model_len: int) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_model_len = max_model_len

    def check(self, request: Request) -> Finish | None:
        """Whether the token just appended to the request ends it. A stop counts before the length."""
        params, token_id = request.params, request.token_ids[-1]
        if (
            (token_id in self._eos_token_ids and not params.ignore_eos) or token_id in params.stop_token_ids
        ) and request.num_output_tokens >= params.min_tokens:
            return Finish("stop", token_id)
        return Finish("length") if self.ends_at(request, request.num_tokens) else None

    def ends_at(self, request: Request, num_tokens: int) -> bool:
        """Whether the request is over when it has `num_tokens` tokens, whatever they are."""
        max_tokens = request.params.max_tokens
        at_maximum = max_tokens is not None and num_tokens - request.num_prompt_tokens >= max_tokens
        return at_maximum or num_tokens >= self._max_model_len
