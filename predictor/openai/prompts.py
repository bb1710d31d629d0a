"""Prompts of a request: taken apart, and turned into token ids or text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import ContextLengthError, InvalidPromptError
from engine.input_processor import MAX_CHARACTERS_PER_TOKEN

if TYPE_CHECKING:
    from predictor.service import GenerationService

Prompt = str | list[int]


def split_prompts(prompt: str | Sequence[str | int | list[int]]) -> list[Prompt]:
    """The prompts of a body: one text, several texts, one list of ids, or several. Raises `InvalidPromptError`."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [[i for i in prompt if isinstance(i, int)]]
    if kinds in ({str}, {list}):
        return [p for p in prompt if not isinstance(p, int)]
    problem = "mixes texts, token ids and lists" if kinds else "is empty"
    raise InvalidPromptError(
        f"prompt {problem}: give a text, a list of texts, a list of token ids, or a list of such lists", param="prompt"
    )


def encode_text(service: GenerationService, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a text. Raises `ContextLengthError` for a text that cannot fit, before it is tokenised."""
    context = service.info.max_model_len
    if len(text) > context * MAX_CHARACTERS_PER_TOKEN:
        raise ContextLengthError(
            f"the prompt has {len(text)} characters, more than {context} tokens can hold; shorten it", param="prompt"
        )
    return service.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def prompt_text(service: GenerationService, prompt: Prompt) -> str:
    """The prompt as text, special tokens included; empty where the door will refuse the ids."""
    if isinstance(prompt, str):
        return prompt
    info = service.info
    if len(prompt) > info.max_model_len or not all(0 <= token_id < info.vocab_size for token_id in prompt):
        return ""
    return service.tokenizer.decode(prompt, skip_special_tokens=False)
