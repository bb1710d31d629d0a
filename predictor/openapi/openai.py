"""OpenAI's paths. The request schemas come from the types that decode the bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.sampling_params import MAX_LOGPROBS, MAX_N
from predictor.openai.chat import OWN_FIELDS
from predictor.openai.sampling import DEFAULT_COMPLETION_TOKENS, PLAIN_FIELDS
from predictor.openai.types import ChatRequest, CompletionRequest
from predictor.openai.unsupported import CHAT_HARMLESS, COMPLETION_HARMLESS
from predictor.openapi.build import (
    EVENT_STREAM,
    INTEGER,
    JSON,
    NUMBER,
    STRING,
    Part,
    Schema,
    answer,
    any_of,
    array,
    body,
    constant,
    errors,
    event,
    nullable,
    path_parameter,
    record,
    ref,
)
from predictor.openapi.sampling import TOKEN_ID, described

_STATUSES = (400, 404, 413, 415, 429, 500, 503, 504)
_EMPTY: Schema = {"enum": [None, False, 0, "", [], {}]}
_FINISH: Schema = {"type": "string", "enum": ["stop", "length", "abort"]}
_STOP_REASON: Schema = {
    "anyOf": [STRING, INTEGER, {"type": "null"}],
    "description": "The stop string or token id that ended the sequence.",
}
_COMPLETION_EXAMPLE = {"prompt": "The capital of France is", "max_tokens": 4, "n": 2, "logprobs": 1}
_CHAT_EXAMPLE = {
    "messages": [{"role": "user", "content": "Hello!"}],
    "max_tokens": 4,
    "logprobs": True,
    "top_logprobs": 1,
}


def openai_part(names: tuple[str, ...]) -> Part:
    """Completions and chat under `/v1` and `/openai/v1`, and `/openai/v1/models`. names: those the model goes by."""
    paths: dict[str, Any] = {}
    for prefix, suffix in (("/v1", ""), ("/openai/v1", "_kserve")):
        paths[f"{prefix}/completions"] = {
            "post": _completion(f"completions{suffix}", "Text in, text out", "Completion", _COMPLETION_EXAMPLE)
        }
        paths[f"{prefix}/chat/completions"] = {
            "post": _completion(f"chat_completions{suffix}", "The assistant's next turn", "Chat", _CHAT_EXAMPLE)
        }
    paths["/openai/v1/models"] = {
        "get": {
            "operationId": "openai_models",
            "tags": ["OpenAI"],
            "summary": "The model under each of its names",
            "responses": {"200": answer("The list.", ref("ModelList"))},
        }
    }
    paths["/openai/v1/models/{model}"] = {
        "parameters": [path_parameter("model", "A name that the model goes by; it may hold slashes.", names)],
        "get": {
            "operationId": "openai_model",
            "tags": ["OpenAI"],
            "summary": "The model under one of its names",
            "responses": {"200": answer("The model.", ref("ModelCard")), **errors(ref("OpenAIError"), (404,))},
        },
    }
    return Part(paths=paths, schemas={**_request_schemas(names), **_response_schemas()})


def model_card_properties() -> dict[str, Schema]:
    """Members of a model object."""
    return {
        "id": STRING,
        "object": constant("model"),
        "created": INTEGER,
        "owned_by": STRING,
        "root": STRING,
        "parent": {"type": "null"},
        "max_model_len": {**nullable(INTEGER), "description": "In tokens; null while the model loads."},
    }


def _completion(operation_id: str, summary: str, kind: str, example: Mapping[str, Any]) -> Schema:
    ok = {
        "description": f"The answer; with `stream` server-sent events, whose data is a `{kind}Chunk`, and at last "
        "`[DONE]`, or an `OpenAIError` where the request failed after its first token.",
        "headers": {"x-request-id": {"schema": STRING, "description": "The caller's, or a new one.", "required": True}},
        "content": {
            JSON: {"schema": ref(f"{kind}Response")},
            EVENT_STREAM: {"schema": event(any_of(ref(f"{kind}Chunk"), ref("OpenAIError")), ends_with_done=True)},
        },
    }
    return {
        "operationId": operation_id,
        "tags": ["OpenAI"],
        "summary": summary,
        "requestBody": body(ref(f"{kind}Request"), {"plain": example, "streamed": {**example, "stream": True}}),
        "responses": {"200": ok, **errors(ref("OpenAIError"), _STATUSES)},
    }


# --- requests ---


def _request_schemas(names: tuple[str, ...]) -> dict[str, Schema]:
    _, schemas = msgspec.json.schema_components(
        [CompletionRequest, ChatRequest], ref_template="#/components/schemas/{name}"
    )
    common: dict[str, Schema] = {name: nullable(described(name)) for name in PLAIN_FIELDS}
    common["model"] = nullable({"type": "string", "enum": list(names)})
    logprobs = {**INTEGER, "minimum": 0, "maximum": MAX_LOGPROBS}
    completion = schemas["CompletionRequest"]["properties"]
    completion.update(
        {
            **common,
            **_harmless(COMPLETION_HARMLESS),
            "prompt": _prompt(),
            "max_tokens": {
                **nullable({**INTEGER, "minimum": 0, "default": DEFAULT_COMPLETION_TOKENS}),
                "description": "Null is the rest of the context; 0 needs `echo`.",
            },
            "logprobs": nullable(logprobs),
            "best_of": nullable({**INTEGER, "minimum": 1, "maximum": MAX_N}),
        }
    )
    chat = schemas["ChatRequest"]["properties"]
    harmless = _harmless(CHAT_HARMLESS)
    harmless["tools"] = {**nullable(array({})), "description": "Only with `tool_choice` none; they are not shown."}
    chat.update({**common, **harmless, "top_logprobs": nullable(logprobs)})
    chat["messages"]["minItems"] = 1
    for name in ("max_tokens", "max_completion_tokens"):
        chat[name] = nullable({**INTEGER, "minimum": 1})
    chat["chat_template_kwargs"] = nullable({"type": "object", "propertyNames": {"not": {"enum": sorted(OWN_FIELDS)}}})
    message = schemas["Message"]["properties"]
    message.update({"audio": _EMPTY, "function_call": _EMPTY})
    schemas["ContentPart"]["properties"]["type"] = {"type": "string", "enum": ["text", "refusal"]}
    return schemas


def _prompt() -> Schema:
    ids = array(TOKEN_ID, minItems=1)
    return any_of(STRING, array(STRING, minItems=1), ids, array(ids, minItems=1))


def _harmless(table: Mapping[str, tuple[Any, ...]]) -> dict[str, Schema]:
    text = "Accepted where it asks for nothing; any other value is refused."
    return {name: {"enum": [None, *values], "description": text} for name, values in table.items()}


# --- responses ---


def _response_schemas() -> dict[str, Schema]:
    details = record({"cached_tokens": INTEGER}, ("cached_tokens",))
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    usage = record(
        {**dict.fromkeys(counts, INTEGER), "prompt_tokens_details": details}, (*counts, "prompt_tokens_details")
    )
    error = record({"message": STRING, "type": STRING, "param": nullable(STRING), "code": STRING}, ("message", "type"))
    return {
        "OpenAIError": record({"error": error}, ("error",)),
        "Usage": usage,
        "ModelCard": record(model_card_properties(), model_card_properties()),
        "ModelList": record(
            {"object": constant("list"), "data": array(ref("ModelCard"), minItems=1)}, ("object", "data")
        ),
        **_completion_schemas(),
        **_chat_schemas(),
    }


def _envelope(kind: str, choice: Schema, *, is_chunk: bool) -> Schema:
    properties = {
        "id": STRING,
        "object": constant(kind),
        "created": INTEGER,
        "model": STRING,
        "system_fingerprint": STRING,
        "choices": array(choice),
        "usage": nullable(ref("Usage")) if is_chunk else ref("Usage"),
    }
    return record(properties, [name for name in properties if not (is_chunk and name == "usage")])


def _choice(content: dict[str, Schema], logprobs: Schema, *, is_chunk: bool) -> Schema:
    properties = {
        "index": {**INTEGER, "minimum": 0},
        **content,
        "logprobs": nullable(logprobs),
        "finish_reason": nullable(_FINISH) if is_chunk else _FINISH,
        "stop_reason": _STOP_REASON,
    }
    return record(properties, [name for name in properties if not (is_chunk and name == "stop_reason")])


def _completion_schemas() -> dict[str, Schema]:
    lists = {
        "tokens": array(STRING),
        "token_logprobs": array(NUMBER),
        "top_logprobs": array({"type": "object", "additionalProperties": NUMBER}),
        "text_offset": array(INTEGER),
    }
    schemas: dict[str, Schema] = {"CompletionLogprobs": record(lists, lists)}
    for name, is_chunk in (("CompletionResponse", False), ("CompletionChunk", True)):
        choice = _choice({"text": STRING}, ref("CompletionLogprobs"), is_chunk=is_chunk)
        schemas[name] = _envelope("text_completion", choice, is_chunk=is_chunk)
    return schemas


def _chat_schemas() -> dict[str, Schema]:
    entry = {"token": STRING, "logprob": NUMBER, "bytes": array({**INTEGER, "minimum": 0, "maximum": 255})}
    position = record({**entry, "top_logprobs": array(record(entry, entry))}, (*entry, "top_logprobs"))
    role = constant("assistant")
    message = record({"role": role, "content": STRING, "refusal": {"type": "null"}}, ("role", "content", "refusal"))
    delta = record({"role": role, "content": STRING})
    return {
        "ChatLogprobs": record({"content": array(position), "refusal": {"type": "null"}}, ("content", "refusal")),
        "ChatResponse": _envelope(
            "chat.completion", _choice({"message": message}, ref("ChatLogprobs"), is_chunk=False), is_chunk=False
        ),
        "ChatChunk": _envelope(
            "chat.completion.chunk", _choice({"delta": delta}, ref("ChatLogprobs"), is_chunk=True), is_chunk=True
        ),
    }
