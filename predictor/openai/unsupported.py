"""Fields of OpenAI's API that this server cannot honour: a harmless value passes, any other is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidParameterError
from predictor.openai.types import ChatRequest, CompletionRequest

COMPLETION_HARMLESS: Mapping[str, tuple[Any, ...]] = {"suffix": ("",)}

CHAT_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Values, beside null, that ask for nothing more than what a plain text completion does."""


def refuse_unsupported(request: ChatRequest | CompletionRequest) -> None:
    """Raises `InvalidParameterError` with code `unsupported_parameter` for a field that asks for a missing feature."""
    table = CHAT_HARMLESS if isinstance(request, ChatRequest) else COMPLETION_HARMLESS
    for name, harmless in table.items():
        value = getattr(request, name)
        if value is None or value in harmless:
            continue
        # NOTE: with tool_choice "none" the caller asks for plain text: the tools are then not shown to the model.
        if name == "tools" and isinstance(request, ChatRequest) and request.tool_choice == "none":
            continue
        detail = f"; it may only be {' or '.join(repr(v) for v in harmless)}" if harmless else ""
        raise InvalidParameterError(
            f"`{name}` is not supported by this server{detail}: leave it out",
            param=name,
            code="unsupported_parameter",
        )
