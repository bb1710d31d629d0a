"""Small builders of OpenAPI 3.1 and JSON Schema (2020-12) objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
BINARY = "application/octet-stream"

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}

RETRY_AFTER: Schema = {"description": "Whole seconds after which to ask again.", "schema": {**INTEGER, "minimum": 1}}
STATUS_TEXTS = {
    400: "The request is wrong; the message names what is at fault.",
    404: "No such model or version is served here.",
    413: "The request body is larger than the server reads.",
    415: "The request body has a content encoding that is not read here.",
    422: "The request is wrong; the message names what is at fault.",
    424: "The request was taken, and failed before its first token.",
    429: "The server is overloaded.",
    500: "The server failed on this request; its log has the details.",
    501: "This model has no such verb.",
    503: "The model is loading, the server is shutting down, or the engine has stopped.",
    504: "The request's own `timeout` has passed.",
}


@dataclass(frozen=True, slots=True)
class Part:
    """What one surface adds to the document: path items by path, and named schemas."""

    paths: dict[str, Any]
    schemas: dict[str, Schema] = field(default_factory=dict)


def ref(name: str) -> Schema:
    """A reference to a named schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(
    properties: Mapping[str, Schema], required: Iterable[str] = (), description: str = "", **more: Any
) -> Schema:
    """An object with these members and no others."""
    schema: Schema = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
        **more,
    }
    return {"description": description, **schema} if description else schema


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def constant(value: Any) -> Schema:
    return {"const": value}


def event(data: Schema, *, ends_with_done: bool) -> Schema:
    """One server-sent event whose data is JSON. Below OpenAPI 3.2 the schema of an event stream is that of an event."""
    text: Schema = {**STRING, "contentMediaType": JSON, "contentSchema": data}
    if ends_with_done:
        text = any_of({"const": "[DONE]"}, text)
    return {"type": "object", "properties": {"data": text}, "required": ["data"]}


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return any_of(schema, {"type": "null"})


def body(schema: Schema, examples: Mapping[str, Any], **other_contents: Any) -> Schema:
    """A required JSON request body. examples: bodies by name. other_contents: further media types."""
    named = {name: {"value": value} for name, value in examples.items()}
    return {"required": True, "content": {JSON: {"schema": schema, "examples": named}, **other_contents}}


def answer(description: str, schema: Schema | None = None, media_type: str = JSON, **more: Any) -> Schema:
    """A response; without a schema it has no body."""
    response: Schema = {"description": description, **more}
    return response if schema is None else {**response, "content": {media_type: {"schema": schema}}}


def errors(error: Schema, statuses: Iterable[int]) -> dict[str, Schema]:
    """Error responses, all with the same body. 429 tells when to try again; 503 does on most surfaces."""
    responses = {}
    for status in statuses:
        responses[str(status)] = answer(STATUS_TEXTS[status], error)
        if status in (429, 503):
            responses[str(status)]["headers"] = {"Retry-After": {**RETRY_AFTER, "required": status == 429}}
    return responses


def path_parameter(name: str, description: str, values: Sequence[str]) -> Schema:
    """A parameter of the path. values: the only ones that are found."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "enum": list(values)},
    }
