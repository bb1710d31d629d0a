"""REST bodies to KServe's types and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from predictor.kserve_adapter import InferInput, InferOutput, InferResponse
from predictor.oip.codec_json import decode_request, encode_response
from predictor.oip.errors import MalformedRequestError
from predictor.oip.infer_types import InferRequest, RequestedOutput, tensor_from


def decode(*tensors: dict[str, Any], **more: Any) -> InferRequest:
    return decode_request(orjson.dumps({"inputs": list(tensors), **more}), None, "m")


def tensor(datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": datatype, "shape": shape, "data": data}


def test_flat_and_nested_data_are_the_same_tensor() -> None:
    flat = decode(tensor("INT32", [2, 3], [1, 2, 3, 4, 5, 6]))
    nested = decode(tensor("INT32", [2, 3], [[1, 2, 3], [4, 5, 6]]))
    assert flat.inputs[0].data == nested.inputs[0].data == [1, 2, 3, 4, 5, 6]
    assert nested.inputs[0].as_numpy().tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2, 2], [[1, 2], [3]]),
        ([2, 2], [[1, 2, 3, 4]]),
        ([2, 2], [[1, 2], 3]),
        ([2, 2], [1, 2, [3, 4]]),
        ([4], [[1, 2], [3, 4]]),
        ([2, 2], [[[1], [2]], [[3], [4]]]),
        ([2, 1, 2], [[1, 2], [3, 4]]),
        ([1], [[1]]),
    ],
)
def test_another_nesting_is_refused(shape: list[int], data: Any) -> None:
    with pytest.raises(MalformedRequestError, match="'x'"):
        decode(tensor("INT32", shape, data))


def test_a_custom_preprocess_can_read_texts_and_arrays() -> None:
    (item,) = decode(tensor("BYTES", [2], ["ä", "b"])).inputs
    assert item.as_string() == ["ä", "b"]
    assert item.as_numpy().tolist() == ["ä".encode(), b"b"]
    assert item.data == ["ä".encode(), b"b"]


def test_what_a_custom_preprocess_makes_is_read_back() -> None:
    item = InferInput("x", [2], "BYTES")
    item.set_data_from_numpy(np.array(["a", "b"], dtype=np.object_))
    assert tensor_from(item).values == [b"a", b"b"]
    for data in (["a", b"b"], [["a"], ["b"]] and ["a", "b"], np.array(["a", "b"], dtype=np.object_)):
        assert tensor_from(InferInput("x", [2], "BYTES", data)).values == [b"a", b"b"]
    assert tensor_from(InferInput("x", [1, 2], "INT64", np.array([[1, 2]]))).values == [1, 2]
    with pytest.raises(MalformedRequestError, match="no data"):
        tensor_from(InferInput("x", [1], "INT64"))


def test_null_is_the_same_as_absent_for_optional_members() -> None:
    request = decode(tensor("INT8", [1], [1]), id=None, parameters=None, outputs=None)
    assert (request.id, request.parameters, request.request_outputs) == (None, {}, None)


@pytest.mark.parametrize(
    "entry",
    [
        5,
        {},
        {"name": "", "datatype": "INT8", "shape": [1], "data": [1]},
        {"name": "x", "datatype": "int8", "shape": [1], "data": [1]},
        {"name": "x", "datatype": None, "shape": [1], "data": [1]},
        {"name": "x", "datatype": "INT8", "data": [1]},
        {"name": "x", "datatype": "INT8", "shape": [1]},
        {"name": "x", "datatype": "INT8", "shape": [1], "data": None},
        {"name": "x", "datatype": "INT8", "shape": [1], "data": {"0": 1}},
        {"name": "x", "datatype": "INT8", "shape": [1], "data": [1], "parameters": []},
        {"name": "x", "datatype": "INT8", "shape": [1], "data": [1], "parameters": {"a": None}},
        {"name": "x", "datatype": "INT8", "shape": [1], "data": [1], "parameters": {"binary_data_size": 1}},
        {"name": "x", "datatype": "INT8", "shape": [1], "data": [1], "content": 1},
    ],
)
def test_a_malformed_input_is_refused(entry: Any) -> None:
    with pytest.raises(MalformedRequestError):
        decode(entry)


def test_outputs_of_a_custom_postprocess_are_encoded() -> None:
    request = decode(tensor("INT8", [1], [1]))
    outputs = [
        InferOutput("a", [2], "FP32", np.array([0.5, 1.0], dtype=np.float32), parameters={"unit": "m"}),
        InferOutput("b", [1], "BYTES", ["text"]),
    ]
    raw = InferOutput("c", [1], "INT32")
    raw.set_data_from_numpy(np.array([7], dtype=np.int32))
    body, length = encode_response(InferResponse("id", "m", [*outputs, raw], parameters={"k": 1}), request)
    assert length is None
    assert orjson.loads(body) == {
        "model_name": "m",
        "id": "id",
        "parameters": {"k": 1},
        "outputs": [
            {"name": "a", "shape": [2], "datatype": "FP32", "data": [0.5, 1.0], "parameters": {"unit": "m"}},
            {"name": "b", "shape": [1], "datatype": "BYTES", "data": ["text"]},
            {"name": "c", "shape": [1], "datatype": "INT32", "data": [7]},
        ],
    }


def test_fp16_outputs_always_go_as_binary_data() -> None:
    request = decode(tensor("INT8", [1], [1]))
    body, length = encode_response(InferResponse("", "m", [InferOutput("h", [1], "FP16", [1.0])]), request)
    assert body[length:] == b"\x00\x3c"


def test_a_malformed_output_is_the_servers_mistake() -> None:
    request = InferRequest("m", [], request_outputs=[RequestedOutput("a")])
    with pytest.raises(ValueError, match="malformed output"):
        encode_response(InferResponse("", "m", [InferOutput("a", [2], "INT8", [1])]), request)
