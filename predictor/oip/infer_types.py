"""Between KServe's request and response types and `Tensor`.

The handlers decode into KServe's types so that a model's own `preprocess` and `postprocess` work on them, and what
those return is read back here as strictly as what a client sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.brief import brief_text
from predictor.kserve_adapter import InferInput, InferOutput, InferRequest, InferResponse, RequestedOutput
from predictor.oip.errors import MalformedRequestError
from predictor.oip.tensors import Tensor, check_datatype, check_shape, check_values, decode_raw

__all__ = [
    "DecodedInput",
    "InferOutput",
    "InferRequest",
    "InferResponse",
    "RequestedOutput",
    "output_tensor",
    "tensor_from",
]


class DecodedInput(InferInput):  # type: ignore[misc]
    """An input as the strict decoders make it, the same over JSON, binary data and gRPC.

    data: flat, row-major; BYTES elements are `bytes`. `as_numpy()` has the tensor's shape.
    """

    def __init__(self, tensor: Tensor, parameters: dict[str, Any] | None) -> None:
        super().__init__(tensor.name, list(tensor.shape), tensor.datatype, tensor.values, parameters)

    def as_string(self) -> list[str]:
        """The elements of a BYTES input as text, flat. Raises `MalformedRequestError` for bytes that are not UTF-8."""
        return [decode_text(self.name, index, element) for index, element in enumerate(tensor_from(self).values)]


def decode_text(name: str, index: int, element: Any) -> str:
    """One element of the BYTES tensor `name` as text. Raises `MalformedRequestError` unless it is UTF-8."""
    if not isinstance(element, bytes):
        raise MalformedRequestError(f"tensor '{name}' must be of datatype BYTES")
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise MalformedRequestError(f"tensor '{name}' must hold UTF-8 text: element {index}: {error}") from None


def tensor_from(item: Any) -> Tensor:
    """The tensor of an `InferInput` or `InferOutput`: raw data, a numpy array, or a flat or nested list.

    Raises `MalformedRequestError` where data, datatype and shape do not agree.
    """
    label = brief_text(item.name)
    datatype = check_datatype(label, item.datatype)
    shape = check_shape(label, list(item.shape))
    raw = item._raw_data  # KServe has no public accessor for it.
    if raw is not None:
        return Tensor(item.name, datatype.name, shape, decode_raw(label, datatype, shape, bytes(raw)))
    data = item.data
    if isinstance(data, np.ndarray):
        values = data.reshape(-1).tolist()
    elif isinstance(data, list | tuple):
        values = flatten(label, shape, data)
    else:
        raise MalformedRequestError(f"tensor '{label}' holds no data")
    return Tensor(item.name, datatype.name, shape, check_values(label, datatype, shape, values))


def output_tensor(output: InferOutput) -> Tensor:
    """The tensor of an output. Raises `ValueError` for a malformed one: the server's own mistake, not the client's."""
    try:
        return tensor_from(output)
    except MalformedRequestError as error:
        raise ValueError(f"the model returned a malformed output: {error}") from error


def flatten(name: str, shape: tuple[int, ...], data: Sequence[Any]) -> list[Any]:
    """Elements of data that is flat, or nested exactly as `shape` says (inference_rest.md, "Tensor Data").

    Raises `MalformedRequestError` for another nesting. The number of flat elements is left to be checked.
    """
    is_nested = len(data) > 0 and isinstance(data[0], list | tuple)
    if len(shape) == 1 or not is_nested:
        return list(data)
    level: list[Any] = [data]
    for dimension in shape:
        following: list[Any] = []
        for item in level:
            if not isinstance(item, list | tuple) or len(item) != dimension:
                raise MalformedRequestError(f"the nested data of tensor '{name}' does not have the shape {list(shape)}")
            following.extend(item)
        level = following
    return level


def plain_parameters(parameters: Any) -> dict[str, Any]:
    """Parameters as a dict: from None, a dict, or a protobuf map of values with one set field each."""
    if not parameters:
        return {}
    if not isinstance(parameters, Mapping):
        raise MalformedRequestError("parameters must be an object of names and values")
    return {name: _plain(value) for name, value in parameters.items()}


def _plain(value: Any) -> Any:
    which = getattr(value, "WhichOneof", None)
    if which is None:
        return value
    field = which("parameter_choice")
    return None if field is None else getattr(value, field)
