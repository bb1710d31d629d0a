"""The header of a GGUF file, against the gguf package's own reader, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import ModelLoadError
from engine.models.gguf_file import TENSOR_TYPES, GgufFile
from tests.tiny_gguf import make_gguf, quantize_as


def test_equals_the_gguf_package(tmp_path: Path) -> None:
    path = make_gguf("qwen3", tmp_path / "m.gguf", quantizer=quantize_as("Q5_1"))
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            expected = field.contents()
            assert ours.metadata[key] == expected or ours.metadata[key] == pytest.approx(expected)
    assert len(ours.tensors) == len(theirs.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert mine.type.name == tensor.tensor_type.name
        assert bytes(ours.data(mine)) == tensor.data.tobytes()


def test_type_table_equals_the_gguf_package() -> None:
    for number, kind in TENSOR_TYPES.items():
        assert kind.name == gguf.GGMLQuantizationType(number).name
        assert (kind.block_size, kind.block_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]


def test_every_kind_of_value(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "ďáž")
    writer.add_array("strings", ["a", "", "ž"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("flags", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = dict(GgufFile(path).metadata)
    del metadata["general.architecture"]
    assert metadata == {
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "text": "ďáž",
        "strings": ["a", "", "ž"],
        "numbers": [1, 2, 3],
        "flags": [True, False],
    }


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = make_gguf("llama", tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in (*range(1, 200), 5000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelLoadError, match=r"cut short|not a GGUF file"):
            GgufFile(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04 something else entirely", "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GGUF version 50331648"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "value of unknown type 99"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<I", 900), "has 900 dimensions"),
    ],
)
def test_damaged_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        GgufFile(path)


def test_unsupported_type_names_the_tensor_and_the_supported(tmp_path: Path) -> None:
    path = make_gguf("llama", tmp_path / "m.gguf", extra_tensors={"extra.weight": np.zeros((2, 2), np.int32)})
    with pytest.raises(ModelLoadError, match=r"tensor extra\.weight has GGML type 26.*supported are F32, F16, Q4_0"):
        GgufFile(path)


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="one part of a split model"):
        GgufFile(path)
