"""KServe's V1 protocol: models, `:predict` and `:explain`."""

from __future__ import annotations

from typing import Any

from predictor.instances import MAX_INSTANCES
from predictor.openapi.build import (
    BOOLEAN,
    STRING,
    Part,
    Schema,
    answer,
    any_of,
    array,
    body,
    constant,
    errors,
    path_parameter,
    record,
    ref,
)
from predictor.openapi.openai import model_card_properties
from predictor.openapi.sampling import TOKEN_ID, option_parameters, text_or_plain_parameters

_EXAMPLE = {"instances": ["Hello", {"prompt": [1, 2], "parameters": {"max_tokens": 4, "n": 2}}]}


def v1_part(names: tuple[str, ...]) -> Part:
    """`/v1/models…`, whose answers serve OpenAI's clients too. names: those the model goes by."""
    named = [path_parameter("name", "A name that the model goes by; it may hold slashes.", names)]
    error = ref("Error")
    paths: dict[str, Any] = {
        "/v1/models": {"get": _operation("v1_models", "The model under each of its names", "V1Models", {})},
        "/v1/models/{name}": {
            "parameters": named,
            "get": _operation("v1_model", "The model under one of its names", "V1Model", errors(error, (404,))),
        },
        "/v1/models/{name}:predict": {
            "parameters": named,
            "post": {
                **_operation(
                    "predict",
                    "Prompts in, texts out",
                    "Predictions",
                    errors(error, (400, 404, 413, 415, 429, 500, 503, 504)),
                ),
                "requestBody": body(ref("Instances"), {"mixed": _EXAMPLE}),
            },
        },
        "/v1/models/{name}:explain": {
            "parameters": named,
            "post": {
                "operationId": "explain",
                "tags": ["V1"],
                "summary": "Refused: this model has no explainer",
                "responses": errors(error, (404, 501)),
            },
        },
    }
    paths["/v1/models/{name}"]["get"]["responses"]["503"] = answer("It is not ready.", ref("V1Model"))
    return Part(paths=paths, schemas=_schemas())


def _operation(operation_id: str, summary: str, schema: str, failures: dict[str, Schema]) -> Schema:
    responses = {"200": answer("The answer.", ref(schema)), **failures}
    return {"operationId": operation_id, "tags": ["V1"], "summary": summary, "responses": responses}


def _schemas() -> dict[str, Schema]:
    prompt = any_of(STRING, array(TOKEN_ID, minItems=1))
    parameters = record({**text_or_plain_parameters(), "timeout": option_parameters()["timeout"]})
    instance = record({"prompt": prompt, "parameters": parameters}, ("prompt",))
    one = {**model_card_properties(), "name": STRING, "ready": BOOLEAN}
    listed = {"object": constant("list"), "data": array(ref("ModelCard")), "models": array(STRING)}
    return {
        "V1Models": record(listed, listed),
        "V1Model": record(one, one),
        "Instances": record(
            {"instances": array(any_of(STRING, instance), minItems=1, maxItems=MAX_INSTANCES)}, ("instances",)
        ),
        "Predictions": record(
            {"predictions": {**array(any_of(STRING, array(STRING))), "description": "Lists where `n` is above 1."}},
            ("predictions",),
        ),
    }
