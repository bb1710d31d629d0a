"""The real server through every official client of the Open Inference Protocol, each in a process of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from typing import Any

import grpc
import httpx
import pytest

from tests.e2e.server import REPOSITORY, Server, until

CAPITAL = "The capital of France is"
PARIS = " Paris"
CLIENT_SECONDS = 300
ABORT_SECONDS = 5 * 1.0
"""Five times what is promised."""


def run_client(module: str, *arguments: str) -> Any:
    """The JSON that a client script prints last."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.e2e.{module}", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def triton(chat_server: Server) -> Any:
    return run_client("oip_tritonclient", chat_server.http_url.removeprefix("http://"), chat_server.grpc_address)


@pytest.fixture(scope="module")
def kserve(chat_server: Server) -> Any:
    return run_client("oip_kserve", chat_server.http_url, chat_server.grpc_address)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient(triton: Any, protocol: str) -> None:
    found = triton[protocol]
    assert found["health"] == [True, True, True]
    assert found["version_ready"] == [True, False]
    assert found["inputs"][:2] == ["text_input", "input_ids"]
    assert (found["text"], found["sampling_tensor"], found["id"], found["reason"]) == (PARIS, PARIS, "7", "length")
    assert found["output_ids_dtype"] == "int32"
    assert found["logprob_is_negative"] is True
    assert found["seeded_alike"] is True
    assert found["ids"] == 2
    bad, unknown = {"http": ("400", "404"), "grpc": ("INVALID_ARGUMENT", "NOT_FOUND")}[protocol]
    assert bad in found["sequence"][0]
    assert "sequence_" in found["sequence"][1]
    assert unknown in found["unknown_model"][0]


def test_tritonclient_json_and_binary_in_and_out(triton: Any) -> None:
    assert triton["http_forms"] == [PARIS] * 4


def test_tritonclient_start_stream(triton: Any) -> None:
    found = triton["stream"]
    assert len(found["tokens"]) == 5
    assert found["tokens"][0] == PARIS
    assert ["".join(found["tokens"])] == found["whole"]
    assert "empty" in found["error"]


def test_kserve_rest_client(kserve: Any) -> None:
    assert kserve["rest"] == {
        "health": [True, True, True],
        "texts": [PARIS] * 5,
        "ids": ["7"] * 5,
        "predictions": [PARIS],
    }


def test_kserve_grpc_client(kserve: Any) -> None:
    assert kserve["grpc"] == {"health": [True, True, True], "texts": [PARIS] * 3, "ids": ["7"] * 3}


def test_curl(chat_server: Server) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [CAPITAL]}
    body = json.dumps({"inputs": [tensor], "parameters": {"max_tokens": 1, "temperature": 0}})
    url = f"{chat_server.http_url}/v2/models/model/infer"
    command = [curl, "-sS", "--fail", "-H", "Content-Type: application/json", "-d", body, url]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert answer["outputs"][0]["data"] == [PARIS]


def test_generate_and_generate_stream(chat_server: Server) -> None:
    body = {"text_input": CAPITAL, "parameters": {"max_tokens": 5, "temperature": 0, "details": True}}
    url = f"{chat_server.http_url}/v2/models/model"
    whole = httpx.post(f"{url}/generate", json=body, timeout=60).json()
    assert whole["text_output"].startswith(PARIS)
    assert whole["details"]["finish_reason"] == "length"
    lines = httpx.post(f"{url}/versions/1/generate_stream", json=body, timeout=60).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(event["text_output"] for event in events) == whole["text_output"]
    assert [event["details"]["token"]["id"] for event in events] == [t["id"] for t in whole["details"]["logprobs"]]


def test_grpc_health_and_reflection(chat_server: Server) -> None:
    health = pytest.importorskip("grpc_health.v1.health_pb2", reason="grpcio-health-checking is not installed")
    stubs = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
    database = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")
    with grpc.insecure_channel(chat_server.grpc_address) as channel:
        for name in ("", "inference.GRPCInferenceService"):
            answer = stubs.HealthStub(channel).Check(health.HealthCheckRequest(service=name))
            assert answer.status == health.HealthCheckResponse.SERVING
        assert "inference.GRPCInferenceService" in database.ProtoReflectionDescriptorDatabase(channel).get_services()


def infer_body(**parameters: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]}],
        "parameters": parameters,
    }


@pytest.fixture
def tiny_url(tiny_server: Server) -> str:
    name = httpx.get(tiny_server.http_url + "/v2/models", timeout=60).json()["models"][0]
    return f"{tiny_server.http_url}/v2/models/{name}"


def test_V11_n_greedy_sequences_are_equal(tiny_url: str) -> None:
    body = infer_body(n=3, temperature=0, max_tokens=20, ignore_eos=True)
    outputs = {o["name"]: o for o in httpx.post(f"{tiny_url}/infer", json=body, timeout=60).json()["outputs"]}
    ids = outputs["output_ids"]["data"]
    assert outputs["output_ids"]["shape"] == [3, 20]
    assert ids[:20] == ids[20:40] == ids[40:]


@pytest.mark.parametrize("verb", ["infer", "generate", "generate_stream"])
def test_a_client_that_goes_away_aborts_its_request(tiny_server: Server, tiny_url: str, verb: str) -> None:
    body = infer_body(max_tokens=4000, ignore_eos=True)
    if verb != "infer":
        body = {"text_input": "Hi", "parameters": body["parameters"]}
    aborted = tiny_server.metric("requests_total", finish_reason="abort")
    if verb == "generate_stream":
        with httpx.stream("POST", f"{tiny_url}/{verb}", json=body, timeout=60) as response:
            assert next(response.iter_text()).startswith("data: ")
    else:
        url, data = httpx.URL(f"{tiny_url}/{verb}"), json.dumps(body)
        with socket.create_connection((url.host, url.port or 0)) as connection:
            head = f"POST {url.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n{data}".encode())
            until(lambda: tiny_server.metric("requests_running") == 1, "the request to run")
    until(
        lambda: tiny_server.metric("requests_total", finish_reason="abort") == aborted + 1, "the abort", ABORT_SECONDS
    )
    until(lambda: tiny_server.metric("requests_running") == 0, "no request to run", ABORT_SECONDS)
