"""The OpenAPI 3.1 document of the whole HTTP surface, built from the code that serves it."""

from __future__ import annotations

from typing import Any

from engine.metrics import package_version
from predictor.guard import OPEN_PATHS
from predictor.openapi.build import Schema, answer, any_of, ref
from predictor.openapi.generate import generate_part
from predictor.openapi.oip import oip_part
from predictor.openapi.openai import openai_part
from predictor.openapi.server import server_part
from predictor.openapi.tokenize import tokenize_part
from predictor.openapi.v1 import v1_part

SCHEME = "ApiKey"
_METHODS = ("get", "post")


def build_document(model_name: str, aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    """The document of a server of the model `model_name`, which goes by `aliases` too on OpenAI's and V1's paths."""
    names = (model_name, *aliases)
    parts = (
        server_part(),
        oip_part(model_name),
        generate_part(model_name),
        openai_part(names),
        v1_part(names),
        tokenize_part(names),
    )
    paths: dict[str, Any] = {}
    schemas: dict[str, Schema] = {}
    for part in parts:
        paths |= part.paths
        assert not schemas.keys() & part.schemas.keys()
        schemas |= part.schemas
    _secure(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pagedserve",
            "version": package_version(),
            "description": "Open Inference Protocol, OpenAI's API and KServe's V1 protocol for one language model. "
            "Every GET path answers HEAD too; query parameters and the content type of a request are not read.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {SCHEME: {"type": "http", "scheme": "bearer"}}},
    }


def _secure(paths: dict[str, Any]) -> None:
    """A key is asked for where the server was started with some, but for the paths that are open by name."""
    text = "The server was started with API keys, and the request holds none of them."
    refusal = answer(
        text,
        any_of(ref("Error"), ref("OpenAIError")),
        headers={"WWW-Authenticate": {"schema": {"type": "string"}, "required": True}},
    )
    for path, item in paths.items():
        if path in OPEN_PATHS:
            continue
        for method in _METHODS:
            if (operation := item.get(method)) is not None:
                operation["security"] = [{}, {SCHEME: []}]
                operation["responses"]["401"] = refusal
