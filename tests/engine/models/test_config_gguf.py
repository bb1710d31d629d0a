"""GGUF metadata to a ModelConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.errors import ModelLoadError
from engine.layers.rope_parameters import yarn_temperature
from engine.models.config import ModelConfig
from engine.models.registry import read_config
from tests.tiny_gguf import make_gguf
from tests.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE


def read(path: Path, family: str = "llama", **kwargs: Any) -> ModelConfig:
    return read_config(make_gguf(family, path / "m.gguf", **kwargs))


def test_shape(tmp_path: Path) -> None:
    config = read(tmp_path, "qwen3")
    assert (config.architecture, config.family, config.vocab_size) == ("Qwen3ForCausalLM", "qwen3", VOCAB_SIZE)
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 96, 3)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 32)
    assert (config.max_position_embeddings, config.rope.theta) == (256, 1000000.0)
    assert config.rms_norm_eps == pytest.approx(1e-6)
    assert config.eos_token_ids == (EOS_TOKEN_ID,)
    assert config.traits.qk_norm
    assert not config.traits.qkv_bias
    assert not config.tie_word_embeddings


def test_biases_are_seen_in_the_tensors(tmp_path: Path) -> None:
    traits = read(tmp_path, "llama_bias").traits
    assert (traits.qkv_bias, traits.output_bias, traits.mlp_bias) == (True, True, True)
    traits = read(tmp_path, "qwen2").traits
    assert (traits.qkv_bias, traits.output_bias, traits.mlp_bias) == (True, False, False)


def test_end_of_turn_ends_a_sequence_too(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_eos_token_id(9)
    writer.add_eot_token_id(4)
    writer.add_eom_token_id(9)
    writer.add_tensor("token_embd.weight", np.zeros((10, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = read_config(path)
    assert config.eos_token_ids == (9, 4)
    assert config.num_kv_heads == 2
    assert config.tie_word_embeddings


def test_linear_and_yarn_scaling(tmp_path: Path) -> None:
    linear = read(tmp_path, metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    assert (linear.rope.kind, linear.rope.factor, linear.max_position_embeddings) == ("linear", 4.0, 256)
    yarn = read(
        tmp_path,
        metadata={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
        },
    )
    assert (yarn.rope.kind, yarn.rope.factor, yarn.rope.original_max_position_embeddings) == ("yarn", 4.0, 128)
    assert yarn.rope.attention_factor == yarn_temperature(4.0)
    assert yarn.max_position_embeddings == 512


def test_sliding_window(tmp_path: Path) -> None:
    assert read(tmp_path, metadata={"attention.sliding_window": 9}).sliding_windows == (9, 9, 9)
    assert read(tmp_path, metadata={"attention.sliding_window": 0}).sliding_windows == (None, None, None)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, "'longrope' is not supported"),
        ({"rope.dimension_count": 8}, r"llama\.rope\.dimension_count other than the head's 16 dimensions"),
        ({"expert_count": 8}, "mixture of experts"),
        ({"attention.sliding_window": [9, 0, 9]}, r"attention\.sliding_window must be a positive whole number"),
    ],
)
def test_refusals_name_the_key(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, metadata=metadata)


def test_misshapen_rope_divisors(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight must be F32 of shape \[8\], got F32 of shape \[3\]"):
        read(tmp_path, rope_freqs=[1.0, 1.0, 1.0])


def test_incomplete_metadata(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"llama\.block_count is missing"):
        read_config(path)
