"""A typed tensor, and the datatypes of the Open Inference Protocol (inference_rest.md, "Tensor Data Types")."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.brief import brief
from predictor.oip.errors import MalformedRequestError

MAX_RANK = 16
MAX_DIMENSION = 2**31 - 1
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Datatype:
    """size: bytes of one element, None for BYTES. code: numpy's little-endian name of the raw form."""

    name: str
    size: int | None
    code: str | None
    low: int = 0
    high: int = 0

    @property
    def is_integer(self) -> bool:
        return self.high > 0


def _integer_type(name: str, size: int, signed: bool) -> Datatype:
    bits = 8 * size
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return Datatype(name, size, f"<{'i' if signed else 'u'}{size}", low, high)


DATATYPES: dict[str, Datatype] = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", 1, "u1"),
        *(_integer_type(f"UINT{8 * size}", size, signed=False) for size in (1, 2, 4, 8)),
        *(_integer_type(f"INT{8 * size}", size, signed=True) for size in (1, 2, 4, 8)),
        Datatype("FP16", 2, "<f2"),
        Datatype("BF16", 2, "<u2"),
        Datatype("FP32", 4, "<f4"),
        Datatype("FP64", 8, "<f8"),
        Datatype("BYTES", None, None),
    )
}
RAW_ONLY = frozenset({"FP16", "BF16"})
"""Neither JSON nor the typed gRPC contents can carry these."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor. values: flat, row-major; bool, int, float, or bytes (BYTES). len(values) is the shape's size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[Any]


def check_datatype(name: str, datatype: object) -> Datatype:
    """Raises `MalformedRequestError` for a datatype that the protocol does not know."""
    known = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if known is None:
        raise MalformedRequestError(
            f"tensor '{name}' has the unknown datatype {brief(datatype)}; known are {', '.join(DATATYPES)}"
        )
    return known


def check_shape(name: str, shape: object) -> tuple[int, ...]:
    """Raises `MalformedRequestError` unless `shape` is a list of whole numbers, none negative."""
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
        raise MalformedRequestError(f"tensor '{name}' must have a list of whole numbers as its shape")
    if not 1 <= len(shape) <= MAX_RANK:
        raise MalformedRequestError(f"tensor '{name}' must have between 1 and {MAX_RANK} dimensions")
    for dimension in shape:
        if isinstance(dimension, bool) or not isinstance(dimension, int) or not 0 <= dimension <= MAX_DIMENSION:
            raise MalformedRequestError(
                f"tensor '{name}' has a dimension {brief(dimension)} in its shape; "
                f"dimensions are whole numbers from 0 to {MAX_DIMENSION}"
            )
    return tuple(shape)


def check_values(name: str, datatype: Datatype, shape: tuple[int, ...], values: Sequence[Any]) -> list[Any]:
    """The flat values as Python's bool, int, float or bytes. A str element of BYTES becomes its UTF-8 bytes.

    Raises `MalformedRequestError` for a count that is not the shape's, or an element that the datatype cannot hold.
    """
    check_count(name, shape, len(values))
    if datatype.name == "BOOL":
        return [_expect(name, datatype, v, isinstance(v, bool)) for v in values]
    if datatype.is_integer:
        low, high = datatype.low, datatype.high
        return [_expect(name, datatype, v, type(v) is int and low <= v <= high) for v in values]
    if datatype.name == "BYTES":
        return [_to_bytes(name, datatype, v) for v in values]
    bound = math.inf if datatype.name == "FP64" else _FLOAT32_MAX
    return [float(_expect(name, datatype, v, type(v) in (int, float) and _fits(v, bound))) for v in values]


def check_count(name: str, shape: tuple[int, ...], count: int) -> None:
    """Raises `MalformedRequestError` unless `count` elements fill the shape."""
    expected = math.prod(shape)
    if expected != count:
        raise MalformedRequestError(
            f"tensor '{name}' has shape {list(shape)}, that is {expected} elements, but data for {count}"
        )


def decode_raw(name: str, datatype: Datatype, shape: tuple[int, ...], raw: bytes) -> list[Any]:
    """Values of the raw form: little-endian elements, or for BYTES a 4-byte little-endian length before each element.

    Raises `MalformedRequestError` unless the bytes are exactly those of the shape.
    """
    if datatype.code is None:
        elements = list(_split_elements(name, raw))
        check_count(name, shape, len(elements))
        return elements
    assert datatype.size is not None
    expected = math.prod(shape) * datatype.size
    if len(raw) != expected:
        raise MalformedRequestError(
            f"tensor '{name}' of datatype {datatype.name} and shape {list(shape)} takes {expected} bytes, "
            f"but its binary data has {len(raw)}"
        )
    array: np.ndarray[Any, np.dtype[Any]] = np.frombuffer(raw, dtype=datatype.code)
    if datatype.name == "BOOL":
        if array.size and int(array.max()) > 1:
            raise MalformedRequestError(f"tensor '{name}' of datatype BOOL holds a byte other than 0 and 1")
        array = array.astype(bool)
    elif datatype.name == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    values: list[Any] = array.tolist()
    return values


def encode_raw(tensor: Tensor) -> bytes:
    """The raw form that `decode_raw` reads."""
    if tensor.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in tensor.values)
    if tensor.datatype == "BF16":
        # NOTE: round to nearest even, as hardware does; the low 16 bits of the float32 fall away.
        bits = np.asarray(tensor.values, dtype=np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return np.asarray(tensor.values, dtype=DATATYPES[tensor.datatype].code).tobytes()


def _split_elements(name: str, raw: bytes) -> Iterable[bytes]:
    offset = 0
    while offset < len(raw):
        if len(raw) - offset < 4:
            raise MalformedRequestError(
                f"tensor '{name}' of datatype BYTES ends within the 4-byte length of an element (byte {offset})"
            )
        (length,) = struct.unpack_from("<I", raw, offset)
        offset += 4
        if length > len(raw) - offset:
            raise MalformedRequestError(
                f"tensor '{name}' of datatype BYTES has an element of length {length} at byte {offset}, "
                f"where only {len(raw) - offset} bytes are left"
            )
        yield raw[offset : offset + length]
        offset += length


def _expect(name: str, datatype: Datatype, value: Any, holds: bool) -> Any:
    if not holds:
        raise MalformedRequestError(f"tensor '{name}' of datatype {datatype.name} cannot hold {brief(value)}")
    return value


def _fits(value: float, bound: float) -> bool:
    try:
        number = float(value)
    except OverflowError:
        return False
    return not math.isfinite(number) or abs(number) <= bound


def _to_bytes(name: str, datatype: Datatype, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise MalformedRequestError(f"tensor '{name}' holds text that is not valid Unicode") from None
    return bytes(_expect(name, datatype, value, isinstance(value, bytes)))
