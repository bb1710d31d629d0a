"""OIP's REST bodies: the JSON object, and the binary tensor data that may follow it.

Binary tensor data is an extension: the header `Inference-Header-Content-Length` tells the length of the JSON object, an
input's parameter `binary_data_size` its bytes after it, in the order of the inputs; an output comes so when its
parameter `binary_data` or the request's `binary_data_output` says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from engine.brief import brief, brief_text
from predictor.json_text import load_json
from predictor.oip.errors import MalformedRequestError
from predictor.oip.infer_types import (
    DecodedInput,
    InferRequest,
    InferResponse,
    RequestedOutput,
    flatten,
    output_tensor,
    plain_parameters,
)
from predictor.oip.parameters import parameter_boolean
from predictor.oip.tensors import (
    RAW_ONLY,
    Tensor,
    check_datatype,
    check_shape,
    check_values,
    decode_raw,
    encode_raw,
)

HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_ID_CHARACTERS = 1024
"""Of a request's `id`, which every answer repeats."""
_REQUEST_KEYS = frozenset({"id", "parameters", "inputs", "outputs", "model_name"})
_INPUT_KEYS = frozenset({"name", "shape", "datatype", "parameters", "data"})
_OUTPUT_KEYS = frozenset({"name", "parameters"})


def decode_request(
    body: bytes, header_length: str | None, model_name: str, model_version: str | None = None
) -> InferRequest:
    """Reads an inference request (inference_rest.md, "Inference Request JSON Object").

    header_length: the header's value, or None where it is absent. model_name, model_version: of the path.
    Every input is a `DecodedInput`. Which tensors and parameters a model takes is not checked here.
    Raises `MalformedRequestError` whose message names the field.
    """
    json_bytes, binary = split_body(body, header_length)
    document = load_object(json_bytes)
    _check_keys(document, _REQUEST_KEYS, "the request")
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise MalformedRequestError("'id' must be a string")
    check_id(request_id)
    if document.get("model_name") not in (None, model_name):
        raise MalformedRequestError(
            f"'model_name' is {brief(document['model_name'])}, but the path says {brief(model_name)}"
        )
    reader = _BinaryReader(binary, is_announced=header_length is not None)
    inputs = [_decode_input(entry, f"inputs[{i}]", reader) for i, entry in enumerate(_entries(document, "inputs"))]
    if not inputs:
        raise MalformedRequestError("'inputs' must be a list of at least one tensor")
    reader.check_used_up()
    outputs = [_decode_output(entry, f"outputs[{i}]") for i, entry in enumerate(_entries(document, "outputs"))]
    check_unique("input", [item.name for item in inputs])
    check_unique("output", [item.name for item in outputs])
    return InferRequest(
        model_name=model_name,
        infer_inputs=inputs,
        request_id=request_id,
        parameters=_decode_parameters(document, "the request"),
        request_outputs=outputs or None,
        model_version=model_version,
    )


def encode_response(response: InferResponse, request: InferRequest) -> tuple[bytes, int | None]:
    """The body of a response, and the length of its JSON object where binary data follows it, else None.

    Text in a JSON answer that is not valid UTF-8 has U+FFFD in place of the bad bytes; binary data has the exact bytes.
    """
    all_binary = parameter_boolean(plain_parameters(request.parameters).get("binary_data_output", False))
    wishes = {
        output.name: plain_parameters(output.parameters).get("binary_data", all_binary)
        for output in request.request_outputs or ()
    }
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for output in response.outputs:
        tensor = output_tensor(output)
        entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
        parameters = plain_parameters(output.parameters)
        parameters.pop("binary_data_size", None)
        if wishes.get(tensor.name, all_binary) or tensor.datatype in RAW_ONLY:
            binary.append(encode_raw(tensor))
            parameters["binary_data_size"] = len(binary[-1])
        else:
            entry["data"] = json_values(tensor)
        if parameters:
            entry["parameters"] = parameters
        outputs.append(entry)
    document: dict[str, Any] = {"model_name": response.model_name}
    if response.model_version:
        document["model_version"] = response.model_version
    if response.id is not None:
        document["id"] = response.id
    if parameters := plain_parameters(response.parameters):
        document["parameters"] = parameters
    document["outputs"] = outputs
    json_bytes = orjson.dumps(document)
    return (json_bytes, None) if not binary else (b"".join([json_bytes, *binary]), len(json_bytes))


def split_body(body: bytes, header_length: str | None) -> tuple[bytes, bytes]:
    """The JSON part of a body and the binary data after it."""
    if header_length is None:
        return body, b""
    is_decimal = header_length.isascii() and header_length.isdigit() and len(header_length) < 20
    if not is_decimal or int(header_length) > len(body):
        raise MalformedRequestError(
            f"the header {HEADER_LENGTH} must be the length of the JSON part, at most the body's {len(body)} bytes; "
            f"got {header_length[:40]!r}"
        )
    return body[: int(header_length)], body[int(header_length) :]


def load_object(json_bytes: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises `MalformedRequestError` for anything else."""
    try:
        document = load_json(json_bytes, "the request")
    except orjson.JSONDecodeError as error:
        raise MalformedRequestError(f"the request is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise MalformedRequestError("the request must be a JSON object")
    return document


def json_values(tensor: Tensor) -> list[Any]:
    """Flat values for JSON; the bytes of BYTES as text."""
    if tensor.datatype != "BYTES":
        return tensor.values
    return [value.decode("utf-8", "replace") for value in tensor.values]


def check_id(request_id: str | None) -> None:
    """Raises `MalformedRequestError` for an id too long to be repeated."""
    if request_id is not None and len(request_id) > MAX_ID_CHARACTERS:
        raise MalformedRequestError(
            f"'id' may have at most {MAX_ID_CHARACTERS} characters, this one has {len(request_id)}"
        )


def check_unique(kind: str, names: list[str]) -> None:
    """Raises `MalformedRequestError` for a name that stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise MalformedRequestError(f"{kind} '{brief_text(name)}' is given twice")
        seen.add(name)


class _BinaryReader:
    """Hands out the binary data in the order of the inputs."""

    def __init__(self, binary: bytes, *, is_announced: bool) -> None:
        self._binary = binary
        self._offset = 0
        self._is_announced = is_announced

    def take(self, name: str, size: Any) -> bytes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise MalformedRequestError(
                f"'binary_data_size' of input '{name}' must be a number of bytes, got {brief(size)}"
            )
        if not self._is_announced:
            raise MalformedRequestError(
                f"input '{name}' has 'binary_data_size', but the request has no header {HEADER_LENGTH}"
            )
        left = len(self._binary) - self._offset
        if size > left:
            raise MalformedRequestError(
                f"'binary_data_size' of input '{name}' is {brief(size)}, but only {left} bytes are left in the body"
            )
        self._offset += size
        return self._binary[self._offset - size : self._offset]

    def check_used_up(self) -> None:
        if left := len(self._binary) - self._offset:
            raise MalformedRequestError(f"{left} bytes of binary data belong to no input")


def _decode_input(entry: Any, where: str, reader: _BinaryReader) -> DecodedInput:
    name = _named(entry, where, _INPUT_KEYS)
    label = brief_text(name)
    datatype = check_datatype(label, entry.get("datatype"))
    shape = check_shape(label, entry.get("shape"))
    parameters = _decode_parameters(entry, f"input '{label}'")
    if "binary_data_size" in parameters:
        if "data" in entry:
            raise MalformedRequestError(f"input '{label}' has both 'data' and 'binary_data_size'; give one")
        raw = reader.take(label, parameters.pop("binary_data_size"))
        return DecodedInput(Tensor(name, datatype.name, shape, decode_raw(label, datatype, shape, raw)), parameters)
    if "data" not in entry:
        raise MalformedRequestError(f"input '{label}' has no 'data'")
    data = entry["data"]
    if not isinstance(data, list):
        raise MalformedRequestError(f"'data' of input '{label}' must be a list")
    if datatype.name in RAW_ONLY:
        raise MalformedRequestError(
            f"input '{label}': JSON cannot carry {datatype.name}; send it as binary data (header {HEADER_LENGTH})"
        )
    values = check_values(label, datatype, shape, flatten(label, shape, data))
    return DecodedInput(Tensor(name, datatype.name, shape, values), parameters)


def _decode_output(entry: Any, where: str) -> RequestedOutput:
    name = _named(entry, where, _OUTPUT_KEYS)
    parameters = _decode_parameters(entry, f"output '{brief_text(name)}'")
    if not isinstance(parameters.get("binary_data", False), bool):
        raise MalformedRequestError(f"'binary_data' of output '{brief_text(name)}' must be true or false")
    return RequestedOutput(name, parameters)


def _named(entry: Any, where: str, known: frozenset[str]) -> str:
    if not isinstance(entry, dict):
        raise MalformedRequestError(f"{where} must be an object")
    _check_keys(entry, known, where)
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise MalformedRequestError(f"{where} must have a 'name', a string")
    return name


def _entries(document: Mapping[str, Any], key: str) -> list[Any]:
    entries = document.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise MalformedRequestError(f"'{key}' must be a list")
    return entries


def _decode_parameters(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise MalformedRequestError(f"'parameters' of {where} must be an object")
    for name, value in parameters.items():
        if not isinstance(value, str | int | float | bool):
            raise MalformedRequestError(
                f"parameter '{brief_text(name)}' of {where} must be a string, a number or a boolean "
                "(a list goes as a JSON list in a string)"
            )
    return parameters


def _check_keys(entry: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for key in entry:
        if key not in known:
            raise MalformedRequestError(f"unknown key {brief(key)} in {where}; known are {', '.join(sorted(known))}")
