"""Datatypes, shapes and raw data."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from predictor.oip.errors import MalformedRequestError
from predictor.oip.tensors import DATATYPES, Tensor, check_shape, check_values, decode_raw, encode_raw


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("BOOL", [True, False]),
        ("UINT8", [0, 255]),
        ("UINT16", [0, 65535]),
        ("UINT32", [0, 2**32 - 1]),
        ("UINT64", [0, 2**64 - 1]),
        ("INT8", [-128, 127]),
        ("INT16", [-32768, 32767]),
        ("INT32", [-(2**31), 2**31 - 1]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("FP16", [0.5, -2.0]),
        ("BF16", [0.5, -2.0]),
        ("FP32", [0.5, -2.0]),
        ("FP64", [0.1, -2.0]),
        ("BYTES", [b"", b"a\x00\xff"]),
    ],
)
def test_raw_data_goes_round_and_values_are_plain_python(datatype: str, values: list[Any]) -> None:
    raw = encode_raw(Tensor("x", datatype, (2,), values))
    size = DATATYPES[datatype].size
    assert size is None or len(raw) == 2 * size
    read = decode_raw("x", DATATYPES[datatype], (2,), raw)
    assert read == values
    assert [type(v) for v in read] == [type(v) for v in values]
    assert check_values("x", DATATYPES[datatype], (2,), values) == values


def test_raw_data_is_little_endian() -> None:
    assert encode_raw(Tensor("x", "INT32", (1,), [1])) == b"\x01\x00\x00\x00"
    assert encode_raw(Tensor("x", "BYTES", (1,), [b"ab"])) == b"\x02\x00\x00\x00ab"


def test_bf16_is_the_upper_half_of_float32_rounded_to_even() -> None:
    values = [1.0, 3.140625, 1.00390625, 1.01171875]  # the last two lie halfway between two bfloat16 numbers
    read = decode_raw("x", DATATYPES["BF16"], (4,), encode_raw(Tensor("x", "BF16", (4,), values)))
    assert read == [1.0, 3.140625, 1.0, 1.015625]
    assert all(float(np.float32(v)) == v for v in read)


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("BOOL", 1),
        ("BOOL", "true"),
        ("UINT8", 256),
        ("UINT8", -1),
        ("INT8", 128),
        ("INT32", 2**31),
        ("INT32", 1.0),
        ("INT32", True),
        ("INT32", "1"),
        ("INT64", None),
        ("INT64", [1]),
        ("UINT64", 2**64),
        ("FP32", "1"),
        ("FP32", True),
        ("FP32", 1e39),
        ("FP32", None),
        ("FP64", 10**400),
        ("BYTES", 1),
        ("BYTES", None),
        ("BYTES", "\ud800"),
        ("BYTES", ["a"]),
    ],
)
def test_an_element_that_the_datatype_cannot_hold_is_refused(datatype: str, value: Any) -> None:
    with pytest.raises(MalformedRequestError, match="'x'"):
        check_values("x", DATATYPES[datatype], (1,), [value])


@pytest.mark.parametrize("shape", [None, "1", 1, {}, [], [-1], [1.0], ["1"], [True], [2**31], [[1]], [1] * 17])
def test_a_shape_is_a_list_of_whole_numbers(shape: Any) -> None:
    with pytest.raises(MalformedRequestError, match="'x'"):
        check_shape("x", shape)


def test_the_count_must_be_the_shapes() -> None:
    huge = (2**31 - 1,) * 16
    for shape, count in (((3,), 2), ((2, 2), 3), ((0,), 1), (huge, 1)):
        with pytest.raises(MalformedRequestError, match=f"data for {count}"):
            check_values("x", DATATYPES["INT32"], shape, [1] * count)
        with pytest.raises(MalformedRequestError):
            decode_raw("x", DATATYPES["INT32"], shape, b"\x00" * 4 * count)
    assert check_values("x", DATATYPES["INT32"], (0, 5), []) == []


def test_O5_bytes_elements_must_lie_within_the_data() -> None:
    for raw in (b"\x0a\x00\x00\x00abc", b"\x01\x00", b"\x01\x00\x00\x00a\x00", struct.pack("<I", 2**32 - 1)):
        with pytest.raises(MalformedRequestError, match="BYTES"):
            decode_raw("x", DATATYPES["BYTES"], (1,), raw)


def test_O6_raw_data_must_have_the_bytes_of_its_shape() -> None:
    with pytest.raises(MalformedRequestError, match="takes 8 bytes, but its binary data has 7"):
        decode_raw("x", DATATYPES["INT64"], (1,), b"\x00" * 7)
