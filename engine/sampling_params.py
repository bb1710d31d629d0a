"""Sampling parameters of one request, validated when made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.brief import brief
from engine.errors import InvalidParameterError

MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
MAX_STOP_CHARACTERS = 4096
"""Of all stop strings of a request together."""
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_SEED = 2**63 - 1
MAX_TOP_K = 2**31 - 1
"""More than any vocabulary has. A larger top_k is off just so; the wire to the engine carries 64 bits only."""

DEFAULT_PRIORITY_LEVEL = 100
"""The level that `priority=0` stands for. Level 1 is served first, as in Triton's scheduler."""
MAX_PRIORITY_LEVEL = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Raises `InvalidParameterError` (with `.param`) for a value of the wrong type or out of range.

    n: sequences generated from the prompt; they share its KV blocks.
    max_tokens: bound of new tokens; None means the rest of the context.
    min_tokens: no EOS and no stop token before this many tokens.
    temperature: 0 is greedy. top_k: 0 (or -1) is off. top_p, min_p: in (0, 1] and [0, 1].
    seed: None draws one when the request enters.
    stop: strings that end the sequence, not returned unless `include_stop_str_in_output`.
    stop_token_ids: token ids that end it, beside the model's own EOS ids (`ignore_eos` turns those off).
    presence_penalty, frequency_penalty: in [-2, 2], over generated tokens (OpenAI's definition).
    repetition_penalty: > 0, over prompt and generated tokens (CTRL, arXiv:1909.05858).
    logit_bias: token id to a bias in [-100, 100], added before everything else.
    logprobs: None for none; k for the log probability of each generated token and of the k most likely.
    priority: 0 is the default level; 1 is the highest, larger numbers come later.
    cache_salt: requests share prefix-cache blocks only with the same salt.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "n", _integer("n", self.n, 1, MAX_N))
        if self.max_tokens is not None:
            set_(self, "max_tokens", _integer("max_tokens", self.max_tokens, 1, None))
        set_(self, "min_tokens", _integer("min_tokens", self.min_tokens, 0, None))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", param="min_tokens"
            )
        set_(self, "temperature", _number("temperature", self.temperature, 0.0, 100.0))
        set_(self, "top_p", _number("top_p", self.top_p, 0.0, 1.0, low_open=True))
        set_(self, "top_k", max(0, _integer("top_k", self.top_k, -1, MAX_TOP_K)))
        set_(self, "min_p", _number("min_p", self.min_p, 0.0, 1.0))
        if self.seed is not None:
            set_(self, "seed", _integer("seed", self.seed, -MAX_SEED - 1, MAX_SEED))
        set_(self, "stop", _strings("stop", self.stop))
        set_(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameterError(f"{name} must be true or false", param=name)
        set_(self, "presence_penalty", _number("presence_penalty", self.presence_penalty, -2.0, 2.0))
        set_(self, "frequency_penalty", _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0))
        set_(self, "repetition_penalty", _number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, True))
        set_(self, "logit_bias", _logit_bias(self.logit_bias))
        if self.logprobs is not None:
            set_(self, "logprobs", _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS))
        set_(self, "priority", _integer("priority", self.priority, 0, MAX_PRIORITY_LEVEL))
        if self.cache_salt is not None and (not isinstance(self.cache_salt, str) or not self.cache_salt):
            raise InvalidParameterError("cache_salt must be a non-empty string", param="cache_salt")

    @property
    def priority_level(self) -> int:
        """The level that orders requests: lower is served first."""
        return self.priority or DEFAULT_PRIORITY_LEVEL

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


def _integer(name: str, value: Any, low: int, high: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameterError(f"{name} must be an integer, got {brief(value)}", param=name)
    if value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidParameterError(f"{name} must be {bound}, got {brief(value)}", param=name)
    return value


def _number(name: str, value: Any, low: float, high: float, low_open: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidParameterError(f"{name} must be a number, got {brief(value)}", param=name)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number > high or number < low or (low_open and number == low):
        raise InvalidParameterError(
            f"{name} must be {'greater than' if low_open else 'at least'} {low:g} and at most {high:g}, "
            f"got {brief(value)}",
            param=name,
        )
    return number


def _strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Iterable) or isinstance(strings, Mapping | bytes):
        raise InvalidParameterError(f"{name} must be a string or a list of strings, got {brief(value)}", param=name)
    strings = tuple(strings)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidParameterError(f"{name} may hold at most {MAX_STOP_STRINGS} strings", param=name)
    if not all(isinstance(s, str) and s for s in strings):
        raise InvalidParameterError(f"{name} must hold non-empty strings only", param=name)
    if any(len(s) > MAX_STOP_LENGTH for s in strings):
        raise InvalidParameterError(f"{name} may hold strings of at most {MAX_STOP_LENGTH} characters", param=name)
    if sum(map(len, strings)) > MAX_STOP_CHARACTERS:
        raise InvalidParameterError(f"{name} may hold at most {MAX_STOP_CHARACTERS} characters in all", param=name)
    return strings


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidParameterError(f"{name} must be a list of token ids, got {brief(value)}", param=name)
    ids = tuple(value)
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidParameterError(f"{name} may hold at most {MAX_STOP_TOKEN_IDS} ids", param=name)
    return tuple(_integer(name, i, 0, None) for i in ids)


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidParameterError("logit_bias must map token ids to numbers", param="logit_bias")
    if len(value) > MAX_LOGIT_BIAS:
        raise InvalidParameterError(f"logit_bias may hold at most {MAX_LOGIT_BIAS} entries", param="logit_bias")
    bias: dict[int, float] = {}
    for key, number in value.items():
        is_decimal = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12
        bias[_integer("logit_bias", int(key) if is_decimal else key, 0, None)] = _number(
            "logit_bias", number, -100.0, 100.0
        )
    return bias
