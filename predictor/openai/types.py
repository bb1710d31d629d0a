"""Request bodies of OpenAI's API, strict: a wrong type or an unknown field is an error that names it.

Fields that OpenAI defines and this server cannot honour are declared too, so that their harmless values pass and
others are refused by name (`unsupported.py`). Beside them stand the sampling fields that vLLM's users send.
`null` means the default, but for `max_tokens` of a text completion, where it means the rest of the context.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from predictor.openai.messages import Message


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """include_usage: a last chunk with usage. continuous_usage_stats: usage so far on every chunk (vLLM's)."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class CommonRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What both kinds of completion share. Ranges are checked by `SamplingParams`."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None


class CompletionRequest(CommonRequest, forbid_unknown_fields=True, kw_only=True):
    """Body of `/v1/completions`. prompt: one or several, each text or token ids."""

    prompt: str | list[str | int | list[int]]
    max_tokens: int | UnsetType | None = UNSET
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class ChatRequest(CommonRequest, forbid_unknown_fields=True, kw_only=True):
    """Body of `/v1/chat/completions`. max_tokens is the older name of max_completion_tokens."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    moderation: Any = None
    prediction: Any = None
    prompt_cache_options: Any = None
    reasoning_effort: Any = None
    response_format: Any = None
    service_tier: Any = None
    store: Any = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Any = None
    web_search_options: Any = None
