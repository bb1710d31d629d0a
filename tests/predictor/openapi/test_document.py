"""The OpenAPI document, against the app and the code that it describes."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from engine import sampling_params as limits
from predictor.guard import OPEN_PATHS
from predictor.instances import MAX_INSTANCES
from predictor.oip.metadata import INPUTS, OUTPUTS
from predictor.oip.parameters import MAX_TIMEOUT_MICROSECONDS, SAMPLING_PARAMETERS, parameters_from_mapping
from predictor.openai.types import ChatRequest, CompletionRequest
from predictor.openapi.document import build_document
from tests.predictor.test_server import flat

DOCUMENT = build_document("model", ("org/alias",))
SCHEMAS = DOCUMENT["components"]["schemas"]
OPTIONS = {"timeout", "binary_data_output", "triton_enable_empty_final_response"}
SEQUENCE = {"sequence_id", "sequence_start", "sequence_end"}


def check(schema: Any, value: Any) -> None:
    Draft202012Validator({**DOCUMENT, "allOf": [schema]}).validate(value)


def ref(name: str) -> Any:
    return {"$ref": f"#/components/schemas/{name}"}


def events(text: str, path: str) -> list[Any]:
    """The data of each event, JSON but for `[DONE]`; each is checked against the document's schema for `path`."""
    content = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    found = []
    for block in blocks:
        data = block.removeprefix("data: ")
        check(content, {"data": data})
        schema = content["properties"]["data"]
        schema = schema.get("anyOf", [schema])[-1]
        found.append(data if data == "[DONE]" else orjson.loads(data))
        if data != "[DONE]":
            check(schema["contentSchema"], found[-1])
    return found


def test_it_is_valid() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


async def test_it_is_served(make_app) -> None:
    answer = await make_app().client.get("/openapi.json")
    assert answer.status == 200
    assert answer.json == DOCUMENT


async def test_it_holds_every_route_and_no_other(make_app) -> None:
    served = {
        (method.lower(), re.sub(r"\{[^}]+\}", "{}", route.path))
        for route in flat(make_app().app.router.routes)
        for method in route.methods - {"HEAD"}
    }
    told = {
        (method, re.sub(r"\{[^}]+\}", "{}", path))
        for path, item in DOCUMENT["paths"].items()
        for method in item.keys() - {"parameters"}
    }
    assert told == served


def test_operation_ids_are_unique() -> None:
    ids = [item[m]["operationId"] for item in DOCUMENT["paths"].values() for m in item.keys() - {"parameters"}]
    assert len(set(ids)) == len(ids)


def test_every_schema_forbids_what_it_does_not_name() -> None:
    """But for those whose members are the caller's, and a content part, of which other fields are not read."""
    is_open = {
        n for n, s in SCHEMAS.items() if s.get("type") == "object" and s.get("additionalProperties") is not False
    }
    assert is_open == {"ContentPart"}


def test_parameters_are_those_that_the_code_reads() -> None:
    assert SCHEMAS["InferParameters"]["properties"].keys() == SAMPLING_PARAMETERS | OPTIONS | SEQUENCE
    assert SCHEMAS["GenerateParameters"]["properties"].keys() == SAMPLING_PARAMETERS | {"timeout", "details"}
    instance = SCHEMAS["Instances"]["properties"]["instances"]["items"]["anyOf"][1]
    assert instance["properties"]["parameters"]["properties"].keys() == SAMPLING_PARAMETERS | {"timeout"}


def test_openai_fields_are_those_that_the_code_reads() -> None:
    assert list(SCHEMAS["CompletionRequest"]["properties"]) == list(CompletionRequest.__struct_fields__)
    assert list(SCHEMAS["ChatRequest"]["properties"]) == list(ChatRequest.__struct_fields__)


def test_tensors_are_those_of_the_metadata() -> None:
    inputs = SCHEMAS["InferRequest"]["properties"]["inputs"]["items"]["anyOf"]
    assert [one["properties"]["name"]["const"] for one in inputs] == list(INPUTS)
    assert SCHEMAS["RequestedOutput"]["properties"]["name"]["enum"] == list(OUTPUTS)
    outputs = SCHEMAS["InferResponse"]["properties"]["outputs"]["items"]["anyOf"]
    assert [one["properties"]["name"]["const"] for one in outputs] == list(OUTPUTS)


def test_limits_are_those_of_the_code() -> None:
    parameters = SCHEMAS["GenerateParameters"]["properties"]
    infer = SCHEMAS["InferParameters"]["properties"]
    assert infer["n"]["anyOf"][0]["maximum"] == limits.MAX_N
    assert infer["timeout"]["anyOf"][0]["maximum"] == MAX_TIMEOUT_MICROSECONDS
    assert parameters["stop"]["anyOf"][1]["maxItems"] == limits.MAX_STOP_STRINGS
    assert parameters["stop"]["anyOf"][0]["maxLength"] == limits.MAX_STOP_LENGTH
    assert SCHEMAS["CompletionRequest"]["properties"]["logprobs"]["anyOf"][0]["maximum"] == limits.MAX_LOGPROBS
    assert SCHEMAS["Instances"]["properties"]["instances"]["maxItems"] == MAX_INSTANCES


@pytest.mark.parametrize("name", sorted(SAMPLING_PARAMETERS))
def test_what_a_parameter_s_schema_bounds_is_what_the_code_bounds(name: str) -> None:
    """The ends of a range are taken by the code, and what lies beyond is not."""
    schema = SCHEMAS["InferParameters"]["properties"][name]
    schema = schema.get("anyOf", [schema])[0]
    schema = schema.get("anyOf", [schema])[0]
    more = {"max_tokens": None} if name == "min_tokens" else {}
    for key, step in (("minimum", -1), ("maximum", 1)):
        if (bound := schema.get(key)) is not None:
            parameters_from_mapping({**more, name: bound})
            with pytest.raises(limits.InvalidParameterError, match=name):
                parameters_from_mapping({**more, name: bound + step})


def test_keys_guard_what_is_not_open_by_name() -> None:
    for path, item in DOCUMENT["paths"].items():
        for method in item.keys() - {"parameters"}:
            is_open = path in OPEN_PATHS
            assert ("security" in item[method]) is not is_open, path
            assert ("401" in item[method]["responses"]) is not is_open, path


async def test_stream_events_are_as_documented(make_app) -> None:
    client = make_app().client
    body = {"prompt": "Hi", "stream": True, "logprobs": 1, "n": 2, "stream_options": {"include_usage": True}}
    found = events((await client.post("/v1/completions", body)).body.decode(), "/v1/completions")
    assert found[-1] == "[DONE]"
    assert len(found) > 5
    chat = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "logprobs": True, "top_logprobs": 1}
    assert (
        events((await client.post("/v1/chat/completions", chat)).body.decode(), "/v1/chat/completions")[-1] == "[DONE]"
    )
    path = "/v2/models/{model_name}/generate_stream"
    for details in (False, True):
        body = {"text_input": "Hi", "parameters": {"details": details, "stop": ["wor"], "logprobs": 1}}
        answer = await client.post("/v2/models/model/generate_stream", body)
        assert ("details" in events(answer.body.decode(), path)[-1]) is details


async def test_answers_are_as_documented(make_app) -> None:
    client = make_app().client
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Hi"]}
    infer = {"id": "1", "inputs": [tensor], "parameters": {"logprobs": "2"}}
    check(ref("InferRequest"), infer)
    check(ref("InferResponse"), (await client.post("/v2/models/model/infer", infer)).json)
    generate = {"text_input": "Hi", "parameters": {"details": True, "logprobs": 2, "top_p": 0, "temperature": "0.5"}}
    check(ref("GenerateRequest"), generate)
    check(ref("GenerateResponse"), (await client.post("/v2/models/model/generate", generate)).json)
    chat = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 2, "n": 2}
    check(ref("ChatRequest"), chat)
    check(ref("ChatResponse"), (await client.post("/v1/chat/completions", chat)).json)
    predict = {"instances": ["Hi", {"prompt": [1], "parameters": {"n": "2"}}]}
    check(ref("Instances"), predict)
    check(ref("Predictions"), (await client.post("/v1/models/org/alias:predict", predict)).json)
    for path, name in (
        ("/", "Alive"),
        ("/v2/health/live", "Live"),
        ("/v2/health/ready", "Ready"),
        ("/v2", "ServerMetadata"),
        ("/v2/models", "ModelNames"),
        ("/v2/models/model/versions/1", "ModelMetadata"),
        ("/v2/models/model/ready", "ModelReady"),
        ("/v1/models", "V1Models"),
        ("/v1/models/org/alias", "V1Model"),
        ("/openai/v1/models", "ModelList"),
        ("/version", "Version"),
    ):
        answer = await client.get(path)
        assert answer.status == 200, path
        check(ref(name), answer.json)


def test_examples_are_valid() -> None:
    for item in DOCUMENT["paths"].values():
        content = item.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in content.get("examples", {}).values():
            check(content["schema"], example["value"])
