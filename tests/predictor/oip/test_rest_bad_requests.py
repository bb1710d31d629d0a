"""Requests over HTTP that are wrong."""

from __future__ import annotations

import struct
from typing import Any

import orjson
import pytest

from tests.predictor.oip.conftest import HEADER, Server, text_request

BAD_REQUESTS = [
    ("O1", text_request("a") | {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": "abc"}]}),
    ("O2", {"inputs": []}),
    ("O2", {}),
    ("O2", {"inputs": [{"name": "text_input", "shape": [3], "datatype": "BYTES", "data": ["a", "b"]}]}),
    ("O2", {"inputs": [{"name": "text_input", "shape": [-1], "datatype": "BYTES", "data": ["a"]}]}),
    ("O3", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "FP16", "data": [1.0]}]}),
    ("O3", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BF16", "data": [1.0]}]}),
    ("V1", text_request("")),
    ("V1", {"inputs": [{"name": "input_ids", "shape": [1, 0], "datatype": "INT32", "data": []}]}),
    ("V2", {"inputs": [{"name": "input_ids", "shape": [2], "datatype": "INT64", "data": [5, 999999]}]}),
    ("V2", {"inputs": [{"name": "input_ids", "shape": [1], "datatype": "INT64", "data": [-1]}]}),
    ("V3", text_request("a", parameters={"logit_bias": '{"999999": 1}'})),
    ("V3", text_request("a", parameters={"logit_bias": '{"x": 1}'})),
    ("V3", text_request("a", parameters={"logit_bias": '{"5": 101}'})),
    ("V5", text_request("a", parameters={"max_tokens": 0})),
    ("V6", text_request("x" * 256)),
    ("V6", text_request("x" * 257)),
    ("unknown input", {"inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}),
    ("unknown output", text_request("a", outputs=[{"name": "text"}])),
    ("unknown parameter", text_request("a", parameters={"tempo": 1})),
    ("unknown key", text_request("a", model="x")),
    ("duplicate input", {"inputs": text_request("a")["inputs"] * 2}),
    ("duplicate output", text_request("a", outputs=[{"name": "text_output"}] * 2)),
    ("list as a parameter", text_request("a", parameters={"stop": ["x"]})),
    ("sequence", text_request("a", parameters={"sequence_id": 5})),
    ("id", text_request("a", id=5)),
    ("other model", text_request("a", model_name="other")),
    ("logprobs not asked", text_request("a", outputs=[{"name": "logprobs"}])),
    ("both prompts", {"inputs": [*text_request("a")["inputs"], {
        "name": "input_ids", "shape": [1], "datatype": "INT32", "data": [1]}]}),
    ("stream", {"inputs": [*text_request("a")["inputs"], {
        "name": "stream", "shape": [1], "datatype": "BOOL", "data": [True]}]}),
    ("input parameter", {"inputs": [{**text_request("a")["inputs"][0], "parameters": {"content_type": "str"}}]}),
    ("output parameter", text_request("a", outputs=[{"name": "text_output", "parameters": {"classification": 3}}])),
    ("binary wish", text_request("a", outputs=[{"name": "text_output", "parameters": {"binary_data": 1}}])),
    ("binary without header", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES",
                                           "parameters": {"binary_data_size": 5}}]}),
    ("int in BYTES", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [5]}]}),
    ("datatype", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "STRING", "data": ["a"]}]}),
    ("float id", {"inputs": [{"name": "input_ids", "shape": [1], "datatype": "INT32", "data": [5.0]}]}),
    ("wide id", {"inputs": [{"name": "input_ids", "shape": [1], "datatype": "INT32", "data": [2**31]}]}),
    ("lengths", {"inputs": [{"name": "input_ids", "shape": [2], "datatype": "INT32", "data": [5, 6]},
                            {"name": "input_lengths", "shape": [1], "datatype": "INT32", "data": [3]}]}),
    ("n differs", {"inputs": [*text_request("a", "b")["inputs"], {
        "name": "sampling_parameters", "shape": [2], "datatype": "BYTES", "data": ['{"n": 1}', '{"n": 2}']}]}),
    ("both places", {**text_request("a", parameters={"seed": 1}), "inputs": [*text_request("a")["inputs"], {
        "name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": ['{"seed": 1}']}]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "body"), BAD_REQUESTS, ids=[f"{i}-{case}" for i, (case, _) in enumerate(BAD_REQUESTS)]
)
async def test_O1_O2_O3_V1_V2_V3_V5_V6_a_bad_request_is_400_and_the_engine_goes_on(
    server: Server, case: str, body: dict[str, Any]
) -> None:
    response = await server.infer(body)
    assert response.status_code == 400, response.text
    assert list(response.json()) == ["error"]
    assert isinstance(response.json()["error"], str)
    assert response.json()["error"]
    assert server.engine.num_requests == 0
    assert (await server.infer(text_request("Hi"))).status_code == 200


BINARY_CASES = [
    ("O5", "BYTES", [1], struct.pack("<I", 10) + b"abc"),
    ("O5", "BYTES", [1], b"\x01\x00"),
    ("O5", "BYTES", [1], (struct.pack("<I", 1) + b"a") * 2),
    ("O5", "BYTES", [2], struct.pack("<I", 1) + b"a"),
    ("O6", "INT64", [1], b"\x00" * 7),
    ("O6", "INT64", [1], b"\x00" * 16),
    ("O6", "BOOL", [1], b"\x02"),
]


@pytest.mark.parametrize(("case", "datatype", "shape", "raw"), BINARY_CASES)
async def test_O5_O6_malformed_binary_tensors_are_400(
    server: Server, case: str, datatype: str, shape: list[int], raw: bytes
) -> None:
    tensor = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(raw)}}
    head = orjson.dumps({"inputs": [tensor]})
    response = await server.infer(head + raw, headers={HEADER: str(len(head))})
    assert response.status_code == 400
    assert "'x'" in response.json()["error"]


@pytest.mark.parametrize(
    ("header", "size", "tail"),
    [
        ("{}", 6, b"\x01\x00\x00\x00a"),
        ("{}", 4, b"\x01\x00\x00\x00a"),
        ("{}", -1, b"\x01\x00\x00\x00a"),
        ("{}", "5", b"\x01\x00\x00\x00a"),
        ("99999", 5, b"\x01\x00\x00\x00a"),
        ("-5", 5, b"\x01\x00\x00\x00a"),
        ("five", 5, b"\x01\x00\x00\x00a"),
        ("1", 5, b"\x01\x00\x00\x00a"),
    ],
)
async def test_binary_sizes_must_be_those_of_the_body(server: Server, header: str, size: Any, tail: bytes) -> None:
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
    head = orjson.dumps({"inputs": [tensor]})
    response = await server.infer(head + tail, headers={HEADER: header.format(len(head))})
    assert response.status_code == 400
    assert list(response.json()) == ["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 5000, b'{"inputs": 1}', b"1e999"]
)
async def test_what_is_no_json_object_is_400(server: Server, body: bytes) -> None:
    response = await server.infer(body)
    assert (response.status_code, list(response.json())) == (400, ["error"])


async def test_a_body_over_the_bound_is_413_and_a_compressed_one_415(server: Server) -> None:
    assert (await server.infer(b" " * (2**20 + 1))).status_code == 413
    response = await server.infer(b"{}", headers={"content-encoding": "gzip"})
    assert (response.status_code, list(response.json())) == (415, ["error"])


async def test_the_length_of_the_json_part_given_twice_is_400(server: Server) -> None:
    body = orjson.dumps(text_request("Hi"))
    lengths = [(HEADER, str(len(body)))]
    assert (await server.infer(body, headers=lengths)).status_code == 200
    response = await server.infer(body, headers=[*lengths, (HEADER, "0")])
    assert response.status_code == 400
    assert HEADER in response.json()["error"]
