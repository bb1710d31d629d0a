"""Prompts of a request: taken apart, and turned into token ids or text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import InvalidPromptError

if TYPE_CHECKING:
    from predictor.service import GenerationService

Prompt = str | list[int]

MAX_PROMPTS = 1024
"""Prompts of one request."""


def split_prompts(prompt: str | Sequence[str | int | list[int]]) -> list[Prompt]:
    """The prompts of a body: one text, several texts, one list of ids, or several. Raises `InvalidPromptError`."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [[i for i in prompt if isinstance(i, int)]]
    if kinds in ({str}, {list}):
        if len(prompt) > MAX_PROMPTS:
            raise InvalidPromptError(
                f"prompt holds {len(prompt)} prompts and may hold {MAX_PROMPTS}; send fewer at a time", param="prompt"
            )
        return [p for p in prompt if not isinstance(p, int)]
    problem = "mixes texts, token ids and lists" if kinds else "is empty"
    raise InvalidPromptError(
        f"prompt {problem}: give a text, a list of texts, a list of token ids, or a list of such lists", param="prompt"
    )


def prompt_text(service: GenerationService, prompt: Prompt) -> str:
    """The prompt as text, special tokens included; empty where the door will refuse the ids."""
    if isinstance(prompt, str):
        return prompt
    info = service.info
    if len(prompt) > info.max_model_len or not all(0 <= token_id < info.vocab_size for token_id in prompt):
        return ""
    return service.tokenizer.decode(prompt, skip_special_tokens=False)
