"""The text generation extension of the Open Inference Protocol (generate_rest.yaml)."""

from __future__ import annotations

from typing import Any

from predictor.oip.generate import DEFAULT_MAX_TOKENS
from predictor.oip.metadata import MODEL_VERSION
from predictor.openapi.build import (
    BOOLEAN,
    EVENT_STREAM,
    INTEGER,
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
    record,
    ref,
)
from predictor.openapi.oip import MODEL_PATH, VERSION_PATH, model_parameters
from predictor.openapi.sampling import option_parameters, text_or_plain_parameters

_STATUSES = (404, 413, 415, 422, 424, 429, 500, 503, 504)
_EXAMPLE = {"text_input": "The capital of France is", "parameters": {"max_tokens": 4, "details": True}}


def generate_part(model_name: str) -> Part:
    """`generate` and `generate_stream`, with and without version."""
    paths: dict[str, Any] = {}
    for path, suffix in ((MODEL_PATH, ""), (VERSION_PATH, "_version")):
        own = {"parameters": model_parameters(model_name, with_version=bool(suffix))}
        whole = answer("The generated text.", ref("GenerateResponse"))
        stream = answer(
            "Server-sent events. The data of each is a `GenerateStreamResponse` with new text, or, as the last one, "
            "an `Error` where the request failed after its first token.",
            event(any_of(ref("GenerateStreamResponse"), ref("Error")), ends_with_done=False),
            EVENT_STREAM,
        )
        for verb, response in (("generate", whole), ("generate_stream", stream)):
            paths[f"{path}/{verb}"] = {**own, "post": _operation(f"{verb}{suffix}", verb, response)}
    return Part(paths=paths, schemas=_schemas(model_name))


def _operation(operation_id: str, verb: str, response: Schema) -> Schema:
    return {
        "operationId": operation_id,
        "tags": ["OIP"],
        "summary": "Text in, text out" if verb == "generate" else "Text in, text out as it is made",
        "requestBody": body(ref("GenerateRequest"), {"details": _EXAMPLE}),
        "responses": {"200": response, **errors(ref("Error"), _STATUSES)},
    }


def _schemas(model_name: str) -> dict[str, Schema]:
    parameters = text_or_plain_parameters()
    for name in ("max_tokens", "n", "top_p"):
        parameters[name] = _own(name, parameters[name])
    parameters["details"] = {
        **BOOLEAN,
        "default": False,
        "description": "Whether the answer tells the finish reason and each token's log probability.",
    }
    parameters["timeout"] = option_parameters()["timeout"]
    one = {"id": {**INTEGER, "minimum": 0}, "text": STRING, "logprob": NUMBER, "special": BOOLEAN}
    top = {**array(ref("LikelyToken")), "description": "The most likely tokens here, where `logprobs` is above 0."}
    reason = {"type": "string", "enum": ["length", "eos_token", "stop_sequence"]}
    common = {"text_output": STRING, "model_name": constant(model_name), "model_version": constant(MODEL_VERSION)}
    details = record({"finish_reason": reason, "logprobs": array(ref("Token"))}, ("finish_reason", "logprobs"))
    stream_details = record(
        {
            "finish_reason": {**nullable(reason), "description": "Null on all events but the last."},
            "token": {**nullable(ref("Token")), "description": "Null where text came without a new token."},
        },
        ("finish_reason", "token"),
    )
    return {
        "GenerateParameters": record(parameters),
        "GenerateRequest": record({"text_input": STRING, "parameters": ref("GenerateParameters")}, ("text_input",)),
        "LikelyToken": record(one, tuple(one)),
        "Token": record({**one, "top": top}, tuple(one)),
        "GenerateResponse": record({**common, "details": details}, tuple(common)),
        "GenerateStreamResponse": record({**common, "details": stream_details}, tuple(common)),
    }


def _own(name: str, schema: Schema) -> Schema:
    """Where a parameter differs from that of `infer`."""
    match name:
        case "max_tokens":
            return {**schema, "default": DEFAULT_MAX_TOKENS}
        case "n":
            return {"enum": [1, "1", "+1"], "description": "One text is answered; use infer for more."}
        case _:
            return any_of({**NUMBER, "minimum": 0, "maximum": 1}, *schema["anyOf"][1:])
