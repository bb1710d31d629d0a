"""From a request body to `SamplingParams`."""

from __future__ import annotations

from msgspec import UNSET

from engine.errors import InvalidParameterError
from engine.sampling_params import MAX_LOGPROBS, MAX_N, SamplingParams
from predictor.openai.types import ChatRequest, CommonRequest, CompletionRequest

PLAIN_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "priority",
    "cache_salt",
)
"""Fields that `SamplingParams` has under the same name and with the same meaning."""

DEFAULT_COMPLETION_TOKENS = 16


def completion_params(request: CompletionRequest) -> SamplingParams:
    """Parameters of one prompt of a text completion; n is the number of sequences to generate (best_of).

    max_tokens is 16 unless given; null is the rest of the context. With `echo` and max_tokens 0, nothing is to be
    generated and max_tokens of the result is 1. Raises `InvalidParameterError`.
    """
    n = 1 if request.n is None else request.n
    best_of = n if request.best_of is None else request.best_of
    for name, value in (("n", n), ("best_of", best_of)):
        if not 1 <= value <= MAX_N:
            raise InvalidParameterError(f"{name} must be between 1 and {MAX_N}, got {value}", param=name)
    if best_of < n:
        raise InvalidParameterError(f"best_of ({best_of}) must not be smaller than n ({n})", param="best_of")
    if best_of > n and request.stream:
        raise InvalidParameterError(
            f"best_of ({best_of}) larger than n ({n}) cannot be streamed: the best are known at the end only",
            param="best_of",
        )
    if request.echo and request.logprobs is not None:
        raise InvalidParameterError(
            "echo with logprobs needs log probabilities of the prompt, which this server does not give: "
            "leave one of them out",
            param="logprobs",
            code="unsupported_parameter",
        )
    logprobs = request.logprobs
    if best_of > n and logprobs is None:
        logprobs = 0
    max_tokens = DEFAULT_COMPLETION_TOKENS if request.max_tokens is UNSET else request.max_tokens
    if max_tokens == 0 and not request.echo:
        raise InvalidParameterError("max_tokens must be at least 1, or 0 together with echo", param="max_tokens")
    return _params(request, max_tokens=1 if max_tokens == 0 else max_tokens, logprobs=logprobs, n=best_of)


def chat_params(request: ChatRequest) -> SamplingParams:
    """Parameters of a chat completion. Without a bound it may fill the context. Raises `InvalidParameterError`."""
    older, newer = request.max_tokens, request.max_completion_tokens
    if older is not None and newer is not None and older != newer:
        raise InvalidParameterError(
            f"max_tokens ({older}) and max_completion_tokens ({newer}) differ: give max_completion_tokens only",
            param="max_tokens",
        )
    if newer is not None and newer < 1:
        raise InvalidParameterError(
            f"max_completion_tokens must be at least 1, got {newer}", param="max_completion_tokens"
        )
    top = request.top_logprobs
    if top is not None and not request.logprobs and top != 0:
        raise InvalidParameterError("top_logprobs needs logprobs to be true", param="top_logprobs")
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidParameterError(
            f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {top}", param="top_logprobs"
        )
    return _params(
        request,
        max_tokens=older if newer is None else newer,
        logprobs=(top or 0) if request.logprobs else None,
        n=1 if request.n is None else request.n,
    )


def check_stream_options(request: CommonRequest) -> None:
    """Raises `InvalidParameterError` for stream options without a stream."""
    if request.stream_options is not None and not request.stream:
        raise InvalidParameterError("stream_options needs stream to be true", param="stream_options")


def _params(request: CommonRequest, *, max_tokens: int | None, logprobs: int | None, n: int) -> SamplingParams:
    chosen = {name: value for name in PLAIN_FIELDS if (value := getattr(request, name)) is not None}
    return SamplingParams(**{**chosen, "n": n, "max_tokens": max_tokens, "logprobs": logprobs})
