"""OIP's gRPC messages to and from KServe's request and response types."""

from __future__ import annotations

from typing import Any

from engine.brief import brief, brief_text
from predictor.oip.codec_json import check_id, check_unique
from predictor.oip.errors import MalformedRequestError
from predictor.oip.infer_types import (
    DecodedInput,
    InferRequest,
    InferResponse,
    RequestedOutput,
    output_tensor,
    plain_parameters,
)
from predictor.oip.schema import ModelInferRequest, ModelInferResponse
from predictor.oip.tensors import (
    RAW_ONLY,
    Tensor,
    check_datatype,
    check_shape,
    check_values,
    decode_raw,
    encode_raw,
)

_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of `InferTensorContents` that carries a datatype (open_inference_grpc.proto)."""


def decode_request(message: ModelInferRequest) -> InferRequest:
    """Reads a ModelInferRequest; its tensors are all in `raw_input_contents`, or all in their `contents`.

    Every input is a `DecodedInput`. Which tensors and parameters a model takes is not checked here.
    Raises `MalformedRequestError` whose message names the field.
    """
    check_id(message.id)
    raw = message.raw_input_contents
    if not message.inputs:
        raise MalformedRequestError("'inputs' must hold at least one tensor")
    if raw and len(raw) != len(message.inputs):
        raise MalformedRequestError(
            f"'raw_input_contents' has {len(raw)} entries for {len(message.inputs)} inputs; give one an input"
        )
    inputs = [_decode_input(tensor, raw[i] if raw else None) for i, tensor in enumerate(message.inputs)]
    outputs = [
        RequestedOutput(output.name, _decode_parameters(output.parameters, f"output '{brief_text(output.name)}'"))
        for output in message.outputs
    ]
    for output in outputs:
        if not isinstance(output.parameters.get("binary_data", False), bool):
            raise MalformedRequestError(f"'binary_data' of output '{brief_text(output.name)}' must be true or false")
    check_unique("input", [item.name for item in inputs])
    check_unique("output", [item.name for item in outputs])
    request = InferRequest(
        model_name=message.model_name,
        infer_inputs=inputs,
        request_id=message.id or None,
        from_grpc=True,
        parameters=_decode_parameters(message.parameters, "the request"),
        request_outputs=outputs or None,
        model_version=message.model_version or None,
    )
    # NOTE: KServe's own convention: raw in, raw out. Its classes keep the fact in this attribute.
    request._use_raw_outputs = bool(raw)
    return request


def encode_response(response: InferResponse, request: InferRequest) -> ModelInferResponse:
    """A ModelInferResponse; its tensors are raw where the request's were, or where a datatype needs it."""
    tensors = [output_tensor(output) for output in response.outputs]
    is_raw = bool(request.use_binary_outputs) or any(tensor.datatype in RAW_ONLY for tensor in tensors)
    message = ModelInferResponse(
        model_name=response.model_name, model_version=response.model_version or "", id=response.id or ""
    )
    encode_parameters(plain_parameters(response.parameters), message.parameters)
    for tensor, output in zip(tensors, response.outputs, strict=True):
        entry = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        parameters = plain_parameters(output.parameters)
        parameters.pop("binary_data_size", None)
        encode_parameters(parameters, entry.parameters)
        if is_raw:
            message.raw_output_contents.append(encode_raw(tensor))
        else:
            getattr(entry.contents, _FIELDS[tensor.datatype]).extend(tensor.values)
    return message


def encode_parameters(parameters: dict[str, Any], target: Any) -> None:
    """Writes parameters into a protobuf map of InferParameter."""
    for name, value in parameters.items():
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int):
            target[name].int64_param = value
        elif isinstance(value, float):
            target[name].double_param = value
        else:
            target[name].string_param = str(value)


def _decode_input(tensor: Any, raw: bytes | None) -> DecodedInput:
    if not tensor.name:
        raise MalformedRequestError("every input must have a name")
    name: str = tensor.name
    label = brief_text(name)
    datatype = check_datatype(label, tensor.datatype)
    shape = check_shape(label, list(tensor.shape))
    parameters = _decode_parameters(tensor.parameters, f"input '{label}'")
    size = parameters.pop("binary_data_size", None)
    filled = {field.name for field, _ in tensor.contents.ListFields()}
    if raw is not None:
        if filled:
            raise MalformedRequestError(f"input '{label}' has 'contents' beside 'raw_input_contents'; give one")
        if size is not None and size != len(raw):
            raise MalformedRequestError(
                f"'binary_data_size' of input '{label}' is {brief(size)}, but its raw contents have {len(raw)} bytes"
            )
        return DecodedInput(Tensor(name, datatype.name, shape, decode_raw(label, datatype, shape, raw)), parameters)
    field = _FIELDS.get(datatype.name)
    if field is None:
        raise MalformedRequestError(f"input '{label}': {datatype.name} can only be sent in 'raw_input_contents'")
    if not filled:
        raise MalformedRequestError(f"input '{label}' has neither 'contents' nor 'raw_input_contents'")
    if filled != {field}:
        raise MalformedRequestError(
            f"input '{label}' of datatype {datatype.name} must have its contents in '{field}' only, "
            f"got {', '.join(sorted(filled))}"
        )
    values = check_values(label, datatype, shape, list(getattr(tensor.contents, field)))
    return DecodedInput(Tensor(name, datatype.name, shape, values), parameters)


def _decode_parameters(parameters: Any, where: str) -> dict[str, Any]:
    plain = plain_parameters(parameters)
    for name, value in plain.items():
        if value is None:
            raise MalformedRequestError(f"parameter '{brief_text(name)}' of {where} has no value")
    return plain
