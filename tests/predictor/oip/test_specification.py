"""Our answers against the Open Inference Protocol's own documents, where a copy of them lies beside the checkout."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from jsonschema import Draft202012Validator

from predictor.oip.generate import DEFAULT_MAX_TOKENS
from predictor.oip.metadata import PLATFORM
from predictor.oip.tensors import DATATYPES
from predictor.openapi.document import build_document
from tests.predictor.oip.conftest import Server

FOLDER = Path(__file__).parents[4] / "shared" / "oip"
VERSION = "/v2/models/model/versions/1"
TENSOR = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"the protocol's documents are not at {FOLDER}")


def check(file: str, name: str, value: Any) -> None:
    document = yaml.safe_load((FOLDER / file).read_text())
    Draft202012Validator({**document, "$ref": f"#/components/schemas/{name}"}).validate(value)


def ours(path: str) -> str:
    return path.replace("${MODEL_NAME}", "{model_name}").replace("${MODEL_VERSION}", "{model_version}")


@pytest.mark.parametrize("file", ["open_inference_rest.yaml", "generate_rest.yaml"])
def test_every_path_method_and_status_of_the_documents_is_ours(file: str) -> None:
    document = build_document("model")
    for path, item in yaml.safe_load((FOLDER / file).read_text())["paths"].items():
        for method in item.keys() & {"get", "post"}:
            operation = document["paths"][ours(path)][method]
            # NOTE: metadata of the server cannot fail: its 400 never comes.
            missing = set(item[method]["responses"]) - set(operation["responses"])
            assert missing <= ({"400"} if path == "/v2/" else set()), path
            without_version = ours(path).replace("/versions/{model_version}", "")
            assert document["paths"][without_version][method], "the version is optional"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v2/", "metadata_server_response"),
        ("/v2", "metadata_server_response"),
        (VERSION, "metadata_model_response"),
        ("/v2/models/model", "metadata_model_response"),
    ],
)
async def test_metadata_follows_the_schema(server: Server, path: str, name: str) -> None:
    check("open_inference_rest.yaml", name, (await server.http.get(path)).json())


async def test_metadata_has_every_member_of_the_text(server: Server) -> None:
    """inference_rest.md asks for `inputs` and `outputs` too, and for a platform of the form <project>_<format>."""
    body = (await server.http.get("/v2/models/model")).json()
    assert body.keys() >= {"name", "versions", "platform", "inputs", "outputs"}
    for tensor in body["inputs"] + body["outputs"]:
        assert tensor.keys() == {"name", "datatype", "shape"}
        assert tensor["datatype"] in DATATYPES
        assert all(size == -1 or size > 0 for size in tensor["shape"])
    assert re.fullmatch("[a-z]+_[a-z]+", PLATFORM)


async def test_readiness_has_the_members_of_the_text(make_app: Callable[..., Any], server: Server) -> None:
    client = make_app().client
    assert (await client.get("/v2/health/live")).json == {"live": True}
    assert (await client.get("/v2/health/ready")).json == {"ready": True, "live": True}
    for path in (f"{VERSION}/ready", "/v2/models/model/ready"):
        assert (await server.http.get(path)).json() == {"name": "model", "ready": True}


async def test_an_answer_and_an_error_follow_the_schema(server: Server) -> None:
    request = {"id": "42", "inputs": [TENSOR], "outputs": [{"name": "text_output"}], "parameters": {"seed": 1}}
    check("open_inference_rest.yaml", "inference_request", request)
    for path in ("/v2/models/model/infer", f"{VERSION}/infer"):
        response = await server.infer(request, path)
        assert response.status_code == 200
        check("open_inference_rest.yaml", "inference_response", response.json())
        assert response.json()["id"] == "42"
        failed = await server.infer({"inputs": []}, path)
        assert failed.status_code == 400
        check("open_inference_rest.yaml", "inference_error_response", failed.json())


async def test_the_request_of_the_text_is_understood_as_far_as_its_tensors(server: Server) -> None:
    """The example of inference_rest.md has a flat tensor of 2 × 2; its second one is short of data."""
    text = (FOLDER / "inference_rest.md").read_text()
    example = orjson.loads(re.search(r"Content-Length: <xx>\n(\s+\{.*?\n    \})\n", text, re.DOTALL)[1])
    response = await server.infer(example)
    assert response.status_code == 400
    assert "input1" in response.json()["error"]
    example["inputs"][1]["shape"] = [1]
    response = await server.infer(example)
    assert "unknown input 'input0'" in response.json()["error"]


def test_every_datatype_of_the_text_is_known() -> None:
    text = (FOLDER / "inference_rest.md").read_text()
    table = dict(re.findall(r"^\| ([A-Z]+[0-9]*)\s+\| (\d+|Variable)", text, re.MULTILINE))
    assert len(table) == 13
    for name, size in table.items():
        assert str(DATATYPES[name].size or "Variable") == size
    assert DATATYPES.keys() - table.keys() == {"BF16"}


async def test_generate_follows_the_schema(server: Server) -> None:
    parameters = {"temperature": 0.5, "top_p": 0, "max_tokens": 20, "stop": ["x"], "details": True}
    request = {"text_input": "Hi", "parameters": parameters}
    check("generate_rest.yaml", "GenerateRequest", request)
    for path in ("/v2/models/model", VERSION):
        whole = await server.http.post(f"{path}/generate", json=request)
        assert whole.status_code == 200
        check("generate_rest.yaml", "GenerateResponse", whole.json())
        stream = await server.http.post(f"{path}/generate_stream", json=request)
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [orjson.loads(block.removeprefix("data: ")) for block in stream.text.split("\n\n") if block]
        # NOTE: the document has a finish reason on every event. Before the last there is none yet: it is null there.
        check("generate_rest.yaml", "GenerateStreamResponse", events[-1])
        for event in events[:-1]:
            check("generate_rest.yaml", "Token", event["details"]["token"])
            assert event["details"]["finish_reason"] is None
    refused = await server.http.post("/v2/models/model/generate", json={"text_input": 1})
    assert refused.status_code == 422
    check("generate_rest.yaml", "GenerateErrorResponse", refused.json())


def test_generate_has_the_defaults_and_members_of_the_document() -> None:
    schemas = yaml.safe_load((FOLDER / "generate_rest.yaml").read_text())["components"]["schemas"]
    theirs = schemas["GenerateParameters"]["properties"]
    mine = build_document("model")["components"]["schemas"]["GenerateParameters"]["properties"]
    assert theirs.keys() <= mine.keys()
    assert theirs["max_tokens"]["default"] == DEFAULT_MAX_TOKENS
    reasons = build_document("model")["components"]["schemas"]["GenerateResponse"]["properties"]["details"]
    assert reasons["properties"]["finish_reason"]["enum"] == schemas["Finish_Reason"]["enum"]


@pytest.mark.parametrize(
    "where",
    [
        {"parameters": {"seed": None}},
        {"parameters": {"seed": [1]}},
        {"parameters": {"seed": {"a": 1}}},
        {"parameters": []},
        {"parameters": "seed"},
        {"outputs": [{"name": "text_output", "parameters": {"binary_data": None}}]},
        {"outputs": [{"name": "text_output", "parameters": [1]}]},
        {"inputs": [{**TENSOR, "parameters": {"binary_data_size": None}}]},
        {"inputs": [{**TENSOR, "parameters": 5}]},
    ],
)
async def test_a_parameter_is_a_string_a_number_or_a_boolean(server: Server, where: dict[str, Any]) -> None:
    response = await server.infer({"inputs": [TENSOR], **where})
    assert (response.status_code, list(response.json())) == (400, ["error"])


@pytest.mark.parametrize("path", ["/v2/models/%6Dodel/infer", "/v2/models/model/versions/%31/infer"])
async def test_names_in_a_path_may_be_percent_encoded(server: Server, path: str) -> None:
    assert (await server.infer({"inputs": [TENSOR]}, path)).status_code == 200


@pytest.mark.parametrize("path", ["/v2/models/mod%20el/infer", "/v2/models/a%2Fb", "/v2/models/%FF", "/v2/models/%00"])
async def test_other_names_are_404(server: Server, path: str) -> None:
    response = await server.http.request("POST" if path.endswith("infer") else "GET", path)
    assert (response.status_code, list(response.json())) == (404, ["error"])


@pytest.mark.parametrize(
    "content_type", [None, "application/octet-stream", "text/plain", "application/json; charset=utf-8"]
)
async def test_the_content_type_of_a_request_is_not_read(server: Server, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = await server.infer(orjson.dumps({"inputs": [TENSOR]}), headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
