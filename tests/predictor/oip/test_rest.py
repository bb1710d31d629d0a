"""Inference by OIP over HTTP, on the scripted engine."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import orjson

from tests.fake_engine import FakeEngine, text_script
from tests.predictor.oip.conftest import HEADER, Server, Shouting, outputs_of, text_request


async def test_infer_answers_with_every_output_but_logprobs(server: Server) -> None:
    response = await server.infer(text_request("Hi", id="42"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert (body["model_name"], body["model_version"], body["id"]) == ("model", "1", "42")
    ids = [*b"Hello, world!", 256]
    assert body["outputs"] == [
        {"name": "text_output", "shape": [1], "datatype": "BYTES", "data": ["Hello, world!"]},
        {"name": "finish_reason", "shape": [1], "datatype": "BYTES", "data": ["stop"]},
        {"name": "num_input_tokens", "shape": [1], "datatype": "INT32", "data": [2]},
        {"name": "num_output_tokens", "shape": [1], "datatype": "INT32", "data": [14]},
        {"name": "output_ids", "shape": [1, 14], "datatype": "INT32", "data": ids},
        {"name": "cumulative_logprob", "shape": [1], "datatype": "FP32", "data": [-7.0]},
    ]


async def test_no_id_no_id(server: Server) -> None:
    assert "id" not in (await server.infer(text_request("Hi"))).json()


async def test_an_id_too_long_is_refused(server: Server) -> None:
    response = await server.infer(text_request("Hi", id="i" * 1025))
    assert response.status_code == 400
    assert "'id'" in response.json()["error"]
    assert (await server.infer(text_request("Hi", id="i" * 1024))).json()["id"] == "i" * 1024


async def test_a_null_model_name_is_none(server: Server) -> None:
    assert (await server.infer(text_request("Hi", model_name=None))).status_code == 200


async def test_an_empty_id_comes_back(server: Server) -> None:
    assert (await server.infer(text_request("Hi", id=""))).json()["id"] == ""


async def test_rows_are_prompt_major_and_output_ids_are_padded(serve: Callable[..., Any]) -> None:
    def script(request: Any, index: int) -> list[int]:
        return [*f"{request.prompt}{'x' * index}".encode(), 256]

    server = await serve(FakeEngine(script))
    response = await server.infer(text_request("a", "bc", parameters={"n": 2}))
    outputs = outputs_of(response.json())
    assert outputs["text_output"] == ["a", "ax", "bc", "bcx"]
    assert outputs["num_input_tokens"] == [1, 1, 2, 2]
    assert outputs["num_output_tokens"] == [2, 3, 3, 4]
    ids = next(o for o in response.json()["outputs"] if o["name"] == "output_ids")
    assert ids["shape"] == [4, 4]
    assert ids["data"][:8] == [97, 256, -1, -1, 97, 120, 256, -1]


async def test_default_max_tokens_is_16(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("x" * 100)))
    outputs = outputs_of((await server.infer(text_request("Hi"))).json())
    assert (outputs["num_output_tokens"], outputs["finish_reason"]) == ([16], ["length"])


async def test_outputs_come_as_asked(server: Server) -> None:
    request = text_request("Hi", outputs=[{"name": "num_output_tokens"}, {"name": "text_output"}])
    body = (await server.infer(request)).json()
    assert [output["name"] for output in body["outputs"]] == ["num_output_tokens", "text_output"]


async def test_logprobs_come_when_the_parameter_is_set(server: Server) -> None:
    body = (await server.infer(text_request("Hi", parameters={"logprobs": 1, "max_tokens": 1}))).json()
    (row,) = outputs_of(body)["logprobs"]
    top = {"token": "H", "id": 72, "logprob": -0.5}
    assert orjson.loads(row) == [{"token": "H", "id": 72, "logprob": -0.5, "top": [top]}]


async def test_sampling_parameters_one_a_prompt(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("x" * 100)))
    request = text_request("a", "b", parameters={"ignore_eos": "true"})
    tensor = {"name": "sampling_parameters", "shape": [2], "datatype": "BYTES"}
    request["inputs"].append({**tensor, "data": ['{"max_tokens": 3, "temperature": 0}', '{"max_tokens": 5}']})
    outputs = outputs_of((await server.infer(request)).json())
    assert outputs["num_output_tokens"] == [3, 5]


async def test_input_ids_with_lengths(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [*request.prompt_token_ids, 256]))
    ids = {"name": "input_ids", "shape": [2, 3], "datatype": "INT64", "data": [[65, 66, 0], [67, 68, 69]]}
    lengths = {"name": "input_lengths", "shape": [2], "datatype": "INT32", "data": [2, 3]}
    outputs = outputs_of((await server.infer({"inputs": [ids, lengths]})).json())
    assert outputs["text_output"] == ["AB", "CDE"]
    flat = {"name": "input_ids", "shape": [2], "datatype": "INT32", "data": [65, 66]}
    assert outputs_of((await server.infer({"inputs": [flat]})).json())["text_output"] == ["AB"]


async def test_the_prompt_comes_before_the_text_when_not_excluded(server: Server) -> None:
    request = text_request("Say: ")
    request["inputs"].append({"name": "exclude_input_in_output", "shape": [1], "datatype": "BOOL", "data": [False]})
    assert outputs_of((await server.infer(request)).json())["text_output"] == ["Say: Hello, world!"]
    ids = {"name": "input_ids", "shape": [2], "datatype": "INT32", "data": [65, 66]}
    request["inputs"][0] = ids
    assert outputs_of((await server.infer(request)).json())["text_output"] == ["ABHello, world!"]


async def test_binary_data_in_and_out(server: Server) -> None:
    raw = struct.pack("<I", 2) + b"Hi"
    head = {
        "inputs": [
            {"name": "text_input", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
        ],
        "outputs": [
            {"name": "text_output"},
            {"name": "num_output_tokens", "parameters": {"binary_data": True}},
            {"name": "finish_reason", "parameters": {"binary_data": False}},
        ],
        "parameters": {"binary_data_output": True},
    }
    head_bytes = orjson.dumps(head)
    response = await server.infer(head_bytes + raw, headers={HEADER: str(len(head_bytes))})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers[HEADER])
    document, binary = orjson.loads(response.content[:length]), response.content[length:]
    assert document["outputs"] == [
        {"name": "text_output", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 17}},
        {"name": "num_output_tokens", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}},
        {"name": "finish_reason", "shape": [1], "datatype": "BYTES", "data": ["stop"]},
    ]
    assert binary == struct.pack("<I", 13) + b"Hello, world!" + struct.pack("<i", 14)


async def test_O4_text_that_is_no_utf8_is_replaced_in_json_and_exact_in_binary(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [0x61, 0xFF, 0x62, 0xE4, 0xBD, 256]))
    outputs = outputs_of((await server.infer(text_request("Hi"))).json())
    assert outputs["text_output"] == ["a\ufffdb\ufffd"]
    wish = [{"name": "text_output", "parameters": {"binary_data": True}}]
    response = await server.infer(text_request("Hi", outputs=wish))
    assert response.content[int(response.headers[HEADER]) :] == struct.pack("<I", 5) + b"a\xffb\xe4\xbd"


async def test_V7_max_tokens_is_clamped_to_the_context(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("y" * 500)))
    body = (await server.infer(text_request("x" * 250, parameters={"max_tokens": 10}))).json()
    assert outputs_of(body)["num_output_tokens"] == [6]
    assert outputs_of(body)["finish_reason"] == ["length"]


async def test_V5_null_max_tokens_is_the_rest_of_the_context(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(text_script("y" * 500)))
    request = text_request("x" * 200)
    tensor = {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": ['{"max_tokens": null}']}
    request["inputs"].append(tensor)
    assert outputs_of((await server.infer(request)).json())["num_output_tokens"] == [56]


async def test_V6_a_prompt_of_one_less_than_the_context_gives_one_token(server: Server) -> None:
    assert outputs_of((await server.infer(text_request("x" * 255))).json())["num_output_tokens"] == [1]


async def test_preprocess_and_postprocess_of_a_subclass_take_effect(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(lambda request, index: [*request.prompt.encode(), 256]), model_class=Shouting)
    response = await server.infer(text_request("abc"), headers={"x-suffix": "d"})
    assert outputs_of(response.json()) == {"text_output": ["ABCD"]}
