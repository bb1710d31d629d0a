"""A model's chat template, rendered by transformers in its sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import InvalidPromptError

# NOTE: arguments of transformers' apply_chat_template that change what it returns, or that would let a request bring
# a template of its own; a request may only set variables of the model's template.
RESERVED = frozenset({
    "add_generation_prompt", "chat_template", "conversation", "max_length", "messages", "padding",
    "return_assistant_tokens_mask", "return_dict", "return_tensors", "sanitize_control_tokens", "self", "tokenize",
    "tokenizer_kwargs", "tools", "truncation",
})  # fmt: skip


class ChatTemplate:
    """Renders messages to the text of a prompt. `transformers_tokenizer` is a PreTrainedTokenizerFast."""

    def __init__(self, transformers_tokenizer: Any) -> None:
        self._tokenizer = transformers_tokenizer

    @property
    def exists(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. variables: passed to the template by name.

        Raises `InvalidPromptError`: no template, no messages, or the template refused them (with its own message).
        """
        if not self.exists:
            raise InvalidPromptError(
                "this model has no chat template; send a prompt to the completions endpoint instead", param="messages"
            )
        if not messages:
            raise InvalidPromptError("messages must not be empty", param="messages")
        if reserved := sorted(RESERVED & set(variables or ())):
            raise InvalidPromptError(
                f"{', '.join(reserved)} cannot be set as a variable of the chat template", param="chat_template_kwargs"
            )
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **dict(variables or {}),
            )
        # NOTE: a template is a program that meets the caller's data: besides TemplateError it raises TypeError,
        # KeyError, ZeroDivisionError and so on. Whatever it is, these messages do not fit this template.
        except Exception as error:
            raise InvalidPromptError(
                f"the chat template refused the messages: {error}", param="messages", code="chat_template_error"
            ) from error
        assert isinstance(text, str)
        return text
