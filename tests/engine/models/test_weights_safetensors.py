"""Safetensors folders: one file, shards, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ModelLoadError
from engine.models.weights_safetensors import SafetensorsSource
from tests.tiny_models import make_checkpoint, make_config, make_weights


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_every_tensor_comes_back(num_shards: int, tmp_path: Path) -> None:
    source = SafetensorsSource(make_checkpoint("qwen2", tmp_path, num_shards=num_shards, tokenizer=False))
    weights = make_weights(make_config("qwen2"))
    assert source.shapes() == {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name, expected in weights.items():
        out = torch.empty_like(expected)
        source.read_into(name, out)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_converted(stored: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([0.5, -2.0, 1.25], dtype=stored)
    save_file({"x": values}, tmp_path / "model.safetensors")
    out = torch.empty(3)
    SafetensorsSource(tmp_path).read_into("x", out)
    assert torch.equal(out, values.float())


def test_integer_tensor_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"x.qweight": torch.zeros(2, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"tensor x\.qweight has type I32.*supported are BF16, F16, F32, F64"):
        SafetensorsSource(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"holds neither model\.safetensors nor .*; it holds pytorch_model\.bin"):
        SafetensorsSource(tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, num_shards=3, tokenizer=False)
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"lacks model-00002-of-00003\.safetensors"):
        SafetensorsSource(path)


def test_index_that_lies_is_refused(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, num_shards=2, tokenizer=False)
    index = path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match=r"lacks tensors that .* places there: model\.extra\.weight"):
        SafetensorsSource(path)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', '{"metadata": {}}'])
def test_damaged_index(content: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelLoadError, match="is not a safetensors index"):
        SafetensorsSource(tmp_path)


def test_damaged_file(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match="is not a readable safetensors file"):
        SafetensorsSource(path)
