"""`/tokenize` and `/detokenize`. The request schemas come from the types that read the bodies."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from predictor.openapi.build import INTEGER, STRING, Part, Schema, answer, array, body, errors, nullable, record, ref
from predictor.openapi.sampling import TOKEN_ID
from predictor.routes_tokenize import DetokenizeBody, TokenizeBody


def tokenize_part(names: tuple[str, ...]) -> Part:
    """Both paths. names: those the model goes by."""
    counted = {"count": INTEGER, "max_model_len": INTEGER, "tokens": array(TOKEN_ID)}
    chat = {"messages": [{"role": "user", "content": "Hello!"}], "return_token_strs": True}
    detokenize = _request(DetokenizeBody, names)
    detokenize["properties"]["tokens"]["items"] = TOKEN_ID
    return Part(
        paths={
            "/tokenize": {
                "post": _operation(
                    "tokenize", "A text or a chat to token ids", {"text": {"prompt": "Hi"}, "chat": chat}
                )
            },
            "/detokenize": {
                "post": _operation("detokenize", "Token ids to their text", {"ids": {"tokens": [72, 105]}})
            },
        },
        schemas={
            "TokenizeRequest": _request(TokenizeBody, names),
            "TokenizeResponse": record({**counted, "token_strs": array(STRING)}, counted),
            "DetokenizeRequest": detokenize,
            "DetokenizeResponse": record({"prompt": STRING}, ("prompt",)),
        },
    )


def _operation(name: str, summary: str, examples: dict[str, Any]) -> Schema:
    return {
        "operationId": name,
        "tags": ["Tokens"],
        "summary": summary,
        "requestBody": body(ref(f"{name.capitalize()}Request"), examples),
        "responses": {
            "200": answer("The answer.", ref(f"{name.capitalize()}Response")),
            **errors(ref("Error"), (400, 404, 413, 415, 500, 503)),
        },
    }


def _request(kind: type[BaseModel], names: tuple[str, ...]) -> Schema:
    schema = kind.model_json_schema()
    schema["properties"]["model"] = nullable({"type": "string", "enum": list(names)})
    return schema
