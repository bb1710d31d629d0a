"""The paths of the Open Inference Protocol but its text generation extension (inference_rest.md)."""

from __future__ import annotations

from typing import Any

from predictor.oip.codec_json import HEADER_LENGTH
from predictor.oip.metadata import INPUTS, MODEL_VERSION, OUTPUTS, TensorSpec
from predictor.oip.plan import MAX_PROMPTS
from predictor.oip.tensors import DATATYPES, MAX_DIMENSION
from predictor.openapi.build import (
    BINARY,
    BOOLEAN,
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
    nullable,
    path_parameter,
    record,
    ref,
)
from predictor.openapi.sampling import option_parameters, scalar_parameters

MODEL_PATH = "/v2/models/{model_name}"
VERSION_PATH = "/v2/models/{model_name}/versions/{model_version}"
_ERROR = ref("Error")
_LENGTH_HEADER = {
    "description": "Length in bytes of the JSON object; binary tensor data follows it.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,19}$"},
}
_SIZE = {**INTEGER, "minimum": 0, "description": "Bytes of this tensor after the JSON object."}


def model_parameters(model_name: str, *, with_version: bool) -> list[Schema]:
    """The parameters of a model's path."""
    parameters = [path_parameter("model_name", "The model that this server serves.", [model_name])]
    if with_version:
        parameters.append(path_parameter("model_version", "The version that this server serves.", [MODEL_VERSION]))
    return parameters


def oip_part(model_name: str) -> Part:
    """`/v2`, models and their metadata, readiness and `infer`, and the repository extension."""
    paths: dict[str, Any] = {}
    for path, suffix in (("/v2", ""), ("/v2/", "_slash")):
        paths[path] = {"get": _operation(f"server_metadata{suffix}", "Server metadata", "ServerMetadata")}
    paths["/v2/models"] = {"get": _operation("models", "Names of the models served", "ModelNames")}
    for path, suffix in ((MODEL_PATH, ""), (VERSION_PATH, "_version")):
        own = {"parameters": model_parameters(model_name, with_version=bool(suffix))}
        paths[path] = {**own, "get": _operation(f"metadata{suffix}", "Model metadata", "ModelMetadata", 404)}
        ready = _operation(f"model_ready{suffix}", "Whether the model takes requests", "ModelReady", 404)
        ready["responses"]["503"] = answer("It does not.", ref("ModelReady"))
        paths[f"{path}/ready"] = {**own, "get": ready}
        paths[f"{path}/infer"] = {**own, "post": _infer(f"infer{suffix}", model_name)}
    paths["/v2/repository/index"] = {"post": _operation("repository_index", "The model and its state", "Repository")}
    for verb in ("load", "unload"):
        refusal = {
            "operationId": f"repository_{verb}",
            "tags": ["OIP"],
            "summary": f"Refused: this server cannot {verb} models while it runs",
            "responses": errors(_ERROR, (400, 404)),
        }
        parameters = {"parameters": model_parameters(model_name, with_version=False)}
        paths[f"/v2/repository/models/{{model_name}}/{verb}"] = {**parameters, "post": refusal}
    return Part(paths=paths, schemas=_schemas(model_name))


def _operation(operation_id: str, summary: str, schema: str, *statuses: int) -> Schema:
    return {
        "operationId": operation_id,
        "tags": ["OIP"],
        "summary": summary,
        "responses": {"200": answer("The answer.", ref(schema)), **errors(_ERROR, statuses)},
    }


def _infer(operation_id: str, model_name: str) -> Schema:
    operation = _operation(operation_id, "Inference", "InferResponse", 400, 404, 413, 415, 429, 500, 503, 504)
    operation["responses"]["200"]["content"][BINARY] = {}
    operation["responses"]["200"]["headers"] = {HEADER_LENGTH: _LENGTH_HEADER}
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["The capital of France is"]}
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [[1, 2]]}
    examples = {
        "text": {"id": "1", "inputs": [tensor], "parameters": {"max_tokens": 4, "temperature": 0.5}},
        "token_ids": {"inputs": [ids], "outputs": [{"name": "output_ids"}], "parameters": {"max_tokens": "4"}},
    }
    return {
        **operation,
        "description": "Errors are found before anything is generated. With the header "
        f"`{HEADER_LENGTH}` the body is a `BinaryInferRequest` object followed by the binary tensor data of its "
        "inputs, and an answer with binary outputs is a `BinaryInferResponse` followed by theirs.",
        "parameters": [{"name": HEADER_LENGTH, "in": "header", "required": False, **_LENGTH_HEADER}],
        "requestBody": body(ref("InferRequest"), examples, **{BINARY: {}}),
    }


def _schemas(model_name: str) -> dict[str, Schema]:
    shape = array(INTEGER)
    tensor = record({"name": STRING, "datatype": STRING, "shape": shape}, ("name", "datatype", "shape"))
    state = {"type": "string", "enum": ["READY", "UNAVAILABLE"]}
    entry = record({"name": STRING, "version": STRING, "state": state, "reason": STRING}, ("name", "version", "state"))
    output_parameters = record({"binary_data": BOOLEAN})
    requested = record({"name": _names(OUTPUTS), "parameters": nullable(output_parameters)}, ("name",))
    return {
        "ServerMetadata": record(
            {"name": STRING, "version": STRING, "extensions": array(STRING)}, ("name", "version", "extensions")
        ),
        "ModelNames": record({"models": array(STRING)}, ("models",)),
        "ModelMetadata": record(
            {
                "name": STRING,
                "versions": array(STRING),
                "platform": STRING,
                "inputs": array(tensor),
                "outputs": array(tensor),
                "properties": {"type": "object", "additionalProperties": STRING},
            },
            ("name", "versions", "platform", "inputs", "outputs", "properties"),
        ),
        "ModelReady": record({"name": STRING, "ready": BOOLEAN}, ("name", "ready")),
        "Repository": array(entry),
        "InferParameters": record({**scalar_parameters(), **option_parameters()}),
        "RequestedOutput": requested,
        "InferRequest": _request(model_name, is_binary=False),
        "BinaryInferRequest": _request(model_name, is_binary=True),
        "InferResponse": _response(model_name, is_binary=False),
        "BinaryInferResponse": _response(model_name, is_binary=True),
    }


def _request(model_name: str, *, is_binary: bool) -> Schema:
    inputs = any_of(*(_input(spec, is_binary=False) for spec in INPUTS.values()))
    if is_binary:
        inputs["anyOf"] += [_input(spec, is_binary=True) for spec in INPUTS.values()]
    return record(
        {
            "id": {**nullable(STRING), "description": "Comes back in the answer."},
            "model_name": constant(model_name),
            "parameters": nullable(ref("InferParameters")),
            "inputs": array(inputs, minItems=1, maxItems=len(INPUTS)),
            "outputs": {
                **nullable(array(ref("RequestedOutput"))),
                "description": "All of them, in the model's order, where none is named.",
            },
        },
        ("inputs",),
    )


def _input(spec: TensorSpec, *, is_binary: bool) -> Schema:
    # NOTE: input_ids may be one row, [L], or [N, L]; every other tensor has the rank it is told with.
    ranks = {len(spec.shape), 1}
    bound = 1 if spec.shape == (1,) else MAX_DIMENSION
    dimension = {**INTEGER, "minimum": 1, "maximum": bound}
    element = _element(spec)
    data = array(element, minItems=1) if ranks == {1} else any_of(array(element), array(array(element)))
    if spec.name == "text_input":
        data["maxItems"] = MAX_PROMPTS
    common = {
        "name": constant(spec.name),
        "datatype": {"type": "string", "enum": list(spec.datatypes)},
        "shape": array(dimension, minItems=min(ranks), maxItems=max(ranks)),
    }
    if is_binary:
        size = record({"binary_data_size": _SIZE}, ("binary_data_size",))
        return record({**common, "parameters": size}, (*common, "parameters"))
    return record({**common, "parameters": nullable(record({})), "data": data}, (*common, "data"))


def _element(spec: TensorSpec) -> Schema:
    if spec.name == "stream":
        return {"const": False, "description": "True only with ModelStreamInfer over gRPC."}
    if spec.name in ("input_ids", "input_lengths"):
        low = 0 if spec.name == "input_ids" else 1
        return {**INTEGER, "minimum": low, "maximum": max(DATATYPES[name].high for name in spec.datatypes)}
    return BOOLEAN if spec.datatypes == ("BOOL",) else STRING


def _response(model_name: str, *, is_binary: bool) -> Schema:
    forms = [_output(spec, is_binary=False) for spec in OUTPUTS.values()]
    if is_binary:
        forms += [_output(spec, is_binary=True) for spec in OUTPUTS.values()]
    return record(
        {
            "model_name": constant(model_name),
            "model_version": constant(MODEL_VERSION),
            "id": STRING,
            "outputs": array(any_of(*forms), minItems=1),
        },
        ("model_name", "model_version", "outputs"),
    )


def _output(spec: TensorSpec, *, is_binary: bool) -> Schema:
    rank = len(spec.shape)
    common = {
        "name": constant(spec.name),
        "datatype": constant(spec.datatypes[0]),
        "shape": array({**INTEGER, "minimum": 0}, minItems=rank, maxItems=rank),
    }
    if is_binary:
        size = record({"binary_data_size": _SIZE}, ("binary_data_size",))
        return record({**common, "parameters": size}, (*common, "parameters"))
    element = {"BYTES": STRING, "FP32": NUMBER}.get(spec.datatypes[0], INTEGER)
    return record({**common, "data": array(element)}, (*common, "data"))


def _names(specs: dict[str, TensorSpec]) -> Schema:
    return {"type": "string", "enum": list(specs)}
