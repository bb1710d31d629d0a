"""GGUF weights: every supported type, names, and the row order of llama's q and k."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ModelLoadError
from engine.models import weights_gguf
from engine.models.gguf_file import GgufFile
from engine.models.registry import load_model, read_config
from engine.models.weights_gguf import GgufSource, half_order, huggingface_name
from tests.engine.models.dense_backend import DenseBackend, flat_batch, no_caches
from tests.engine.models.k_quants import block_values, random_block, random_quantizer
from tests.tiny_gguf import Quantizer, interleave, make_gguf, quantize_as
from tests.tiny_models import make_checkpoint, make_config, make_weights

K_QUANTS = ("Q4_K", "Q5_K", "Q6_K")
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def quantizer(kind: str) -> Quantizer:
    return random_quantizer(kind) if kind in K_QUANTS else quantize_as(kind)


def open_source(path: Path) -> GgufSource:
    return GgufSource(GgufFile(path), read_config(path))


def read(source: GgufSource, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.empty(source.shapes()[name], dtype=dtype)
    source.read_into(name, out)
    return out


def logits(path: Path) -> torch.Tensor:
    loaded = load_model(path, torch.float32, DenseBackend(), lambda *_: None)
    input_ids, positions, metadata = flat_batch([[5, 17, 200, 5, 90], [31]])
    hidden = loaded.model.forward(input_ids, positions, no_caches(loaded.config.num_layers), metadata)
    return loaded.model.logits(hidden)


# NOTE: rounding of a value to its nearest step; tolerances are the largest step over the largest value of a block.
@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        ("F32", 0.0),
        ("F16", 2**-11),
        ("BF16", 2**-8),
        ("Q8_0", 1 / 127),
        ("Q5_0", 1 / 15),
        ("Q5_1", 1 / 15),
        ("Q4_0", 1 / 7),
        ("Q4_1", 1 / 7),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_values_come_back_to_the_precision_of_their_type(
    kind: str, tolerance: float, family: str, tmp_path: Path
) -> None:
    source = open_source(make_gguf(family, tmp_path / "m.gguf", quantizer=quantize_as(kind)))
    weights = make_weights(make_config(family))
    assert set(source.shapes()) == set(weights)
    for name, expected in weights.items():
        allowed = tolerance * float(expected.abs().max()) if expected.dim() > 1 else 0.0
        torch.testing.assert_close(read(source, name), expected, atol=allowed, rtol=0)


@pytest.mark.parametrize("kind", K_QUANTS)
def test_k_quants_follow_the_documented_layout(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    blocks = [random_block(kind, rng) for _ in range(12)]
    path = tmp_path / "m.gguf"
    data = np.stack(blocks).reshape(6, -1)
    overrides = {**WIDE, "intermediate_size": 512, "tie_word_embeddings": True}

    def place(values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        if values.shape == (256, 512):
            return np.resize(data, (256, data.shape[1])), gguf.GGMLQuantizationType[kind]
        return quantize_as("F16")(values)

    source = open_source(make_gguf("qwen2", path, quantizer=place, **overrides))
    values = read(source, "model.layers.0.mlp.down_proj.weight")
    expected = torch.tensor([block_values(kind, b) for b in blocks], dtype=torch.float32).view(6, 512)
    torch.testing.assert_close(values[:6], expected, atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(values[6:12], expected, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", *K_QUANTS])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_logits_equal_those_of_the_dequantised_checkpoint(kind: str, family: str, tmp_path: Path) -> None:
    """The same values through safetensors, in Hugging Face's order, give the same logits."""
    path = make_gguf(family, tmp_path / "m.gguf", quantizer=quantizer(kind), **WIDE)
    folder = make_checkpoint(family, tmp_path / "hf", tokenizer=False, **WIDE)
    values = {}
    for tensor in gguf.GGUFReader(path).tensors:
        name = huggingface_name(tensor.name)
        plain = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
        if family == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            heads = 4 if "q_proj" in name else 2
            halves = plain.view(heads, -1, 2, 256).transpose(1, 2).reshape(plain.shape).contiguous()
            assert torch.equal(interleave(halves, heads), plain)
            plain = halves
        values[name] = plain.view([int(n) for n in reversed(tensor.shape)]).contiguous()
    save_file(values, folder / "model.safetensors")
    result = logits(path)
    assert result.isfinite().all()
    assert result.std() > 0.01
    torch.testing.assert_close(result, logits(folder))


@pytest.mark.parametrize("family", ["llama", "llama2", "mqa", "llama_bias", "mistral_full", "qwen2", "qwen3"])
def test_families_equal_their_safetensors_twin(family: str, tmp_path: Path) -> None:
    file = make_gguf(family, tmp_path / "m.gguf")
    folder = make_checkpoint(family, tmp_path / "hf", tokenizer=False)
    torch.testing.assert_close(logits(file), logits(folder), atol=0, rtol=0)


def test_tied_embeddings(tmp_path: Path) -> None:
    file = make_gguf("qwen3_tied", tmp_path / "m.gguf")
    assert read_config(file).tie_word_embeddings
    folder = make_checkpoint("qwen3_tied", tmp_path / "hf", tokenizer=False)
    torch.testing.assert_close(logits(file), logits(folder), atol=0, rtol=0)


def test_llama3_rope_frequencies(tmp_path: Path) -> None:
    """The tensor of divisors gives what the parameters of config.json give."""
    from engine.layers.rotary import inverse_frequencies

    folder = make_checkpoint("llama3", tmp_path / "hf", tokenizer=False)
    scaled = inverse_frequencies(read_config(folder).rope, 16)
    plain = 500000.0 ** -(torch.arange(0, 16, 2) / 16)
    file = make_gguf("llama3", tmp_path / "m.gguf", rope_freqs=(plain / scaled).tolist())
    torch.testing.assert_close(logits(file), logits(folder), atol=1e-4, rtol=0)


def test_llama_bias_rows_are_reordered_too(tmp_path: Path) -> None:
    source = open_source(make_gguf("llama_bias", tmp_path / "m.gguf"))
    expected = make_weights(make_config("llama_bias"))["model.layers.2.self_attn.k_proj.bias"]
    assert torch.equal(read(source, "model.layers.2.self_attn.k_proj.bias"), expected)


def test_half_order_by_hand() -> None:
    # One head of 6 rows: pairs (0, 3), (1, 4), (2, 5) stand side by side in the file.
    assert half_order(6, 1).tolist() == [0, 3, 1, 4, 2, 5]


def test_rows_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_gguf("llama", tmp_path / "m.gguf", quantizer=quantize_as("Q4_1"))
    names = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight")
    whole = [read(open_source(path), name) for name in names]
    monkeypatch.setattr(weights_gguf, "_CHUNK_VALUES", 200)
    for name, expected in zip(names, whole, strict=True):
        assert torch.equal(read(open_source(path), name), expected)
        assert torch.equal(read(open_source(path), name, torch.bfloat16), expected.bfloat16())


def test_unexpected_tensor_is_named_as_in_the_file(tmp_path: Path) -> None:
    path = make_gguf("llama", tmp_path / "m.gguf", extra_tensors={"blk.0.ffn_gate_inp.weight": np.zeros((4, 64), "f")})
    with pytest.raises(ModelLoadError, match=r"does not account for: blk\.0\.ffn_gate_inp\.weight$"):
        load_model(path, None, DenseBackend(), lambda *_: None)


def test_missing_gguf_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantised = make_gguf("llama", tmp_path / "q.gguf", quantizer=quantize_as("Q8_0"))
    plain = make_gguf("llama", tmp_path / "f.gguf", quantizer=quantize_as("BF16"))
    real_import = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "gguf":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModelLoadError, match="pip install gguf"):
        load_model(quantised, None, DenseBackend(), lambda *_: None)
    load_model(plain, None, DenseBackend(), lambda *_: None)
