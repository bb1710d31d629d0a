"""Chat messages: from the request's shape to what a chat template reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import orjson
from msgspec import Struct

from engine.brief import brief
from engine.errors import InvalidParameterError, InvalidPromptError
from predictor.json_text import load_json

MAX_MESSAGES = 16384
"""Messages of one request."""

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ContentPart(Struct, kw_only=True):
    """A part of a message's content. Only text can be served, so the fields of other types are not read."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Struct, forbid_unknown_fields=True, kw_only=True):
    """arguments: JSON text, as the API has it."""

    name: str
    arguments: str


class ToolCall(Struct, forbid_unknown_fields=True, kw_only=True):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    """One turn. The fields of an assistant's answer pass as they were received, so that answers can be sent back."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as dicts for the chat template.

    "developer" becomes "system", the name that templates know; text parts are joined by a newline; the arguments of
    tool calls become objects, as templates expect them. Raises `InvalidPromptError` or `InvalidParameterError` that
    names the message.
    """
    if not messages:
        raise InvalidPromptError("messages is empty: give at least one message", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidPromptError(
            f"messages holds {len(messages)} messages and may hold {MAX_MESSAGES}; leave older ones out",
            param="messages",
        )
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: Message, where: str) -> dict[str, Any]:
    for name in ("audio", "function_call"):
        if getattr(message, name):
            raise InvalidParameterError(
                f"{where}.{name} is not supported by this server: leave it out",
                param=f"{where}.{name}",
                code="unsupported_parameter",
            )
    content = _text(message, where)
    if content is None and not (message.role == "assistant" and (message.tool_calls or message.refusal)):
        raise InvalidParameterError(f"{where}.content is missing: give the text of the message", param=where)
    result: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": (message.refusal or "") if content is None else content,
    }
    if message.tool_calls:
        result["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            result[name] = value
    return result


def _text(message: Message, where: str) -> str | None:
    if not isinstance(message.content, list):
        return message.content
    texts: list[str] = []
    for index, part in enumerate(message.content):
        text = part.refusal if part.type == "refusal" and message.role == "assistant" else part.text
        if part.type not in ("text", "refusal") or text is None:
            raise InvalidParameterError(
                f"{where}.content[{index}] has type {brief(part.type)}, and this model reads text only: send parts of "
                'the form {"type": "text", "text": "..."}',
                param=f"{where}.content[{index}]",
                code="unsupported_content",
            )
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    param = f"{where}.function.arguments"
    try:
        arguments = load_json(call.function.arguments or "{}", param, param=param)
    except orjson.JSONDecodeError as error:
        raise InvalidParameterError(f"{param} is not a JSON object: {error}", param=param) from None
    if not isinstance(arguments, dict):
        raise InvalidParameterError(f"{param} is not a JSON object", param=param)
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
