"""config.json and generation_config.json to a ModelConfig."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelLoadError
from engine.layers.rope_parameters import RopeParameters
from engine.models.config import ModelConfig
from engine.models.config_hf import config_from_folder
from tests.tiny_models import make_config

LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return config_from_folder(folder)


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def test_shape_of_a_llama(tmp_path: Path) -> None:
    config = read(tmp_path, make_config("llama"))
    assert (config.architecture, config.family) == ("LlamaForCausalLM", "llama")
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 96, 3)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.max_position_embeddings, config.rms_norm_eps, config.hidden_act) == (256, 1e-5, "silu")
    assert config.rope == RopeParameters(theta=10000.0)
    assert config.sliding_windows == (None, None, None)
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 3], None, (2, 3)),
        (2, {"eos_token_id": [5, 2]}, (2, 5)),
        (None, {"eos_token_id": 7}, (7,)),
        (None, {}, ()),
    ],
)
def test_eos_ids_of_both_files(in_config: Any, in_generation: Any, expected: tuple[int, ...], tmp_path: Path) -> None:
    config = read(tmp_path, make_config("llama", eos_token_id=in_config), in_generation)
    assert config.eos_token_ids == expected


def test_absent_keys_take_the_family_defaults(tmp_path: Path) -> None:
    bare = ("num_key_value_heads", "max_position_embeddings", "eos_token_id", "rope_theta", "rms_norm_eps", "head_dim")
    llama = read(tmp_path, without(make_config("llama"), *bare))
    assert (llama.num_kv_heads, llama.max_position_embeddings, llama.eos_token_ids) == (4, 2048, (2,))
    assert (llama.rope.theta, llama.rms_norm_eps) == (10000.0, 1e-6)
    mistral = read(tmp_path, without(make_config("mistral"), *bare, "sliding_window"))
    assert (mistral.num_kv_heads, mistral.max_position_embeddings) == (8, 131072)
    assert mistral.sliding_windows == (4096,) * 3
    qwen3 = read(tmp_path, without(make_config("qwen3"), *bare))
    assert (qwen3.num_kv_heads, qwen3.head_dim, qwen3.max_position_embeddings) == (32, 128, 32768)
    assert qwen3.eos_token_ids == ()


def test_null_key_value_heads_means_no_grouping(tmp_path: Path) -> None:
    assert read(tmp_path, make_config("mistral", num_key_value_heads=None)).num_kv_heads == 4


@pytest.mark.parametrize(
    ("family", "overrides", "expected"),
    [
        ("mistral", {"sliding_window": 12}, (12, 12, 12)),
        ("mistral", {"sliding_window": None}, (None, None, None)),
        ("llama", {"sliding_window": 12}, (None, None, None)),
        ("qwen2", {"use_sliding_window": False}, (None, None, None)),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}, (None, None, 12)),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, (12, 12, 12)),
        ("qwen2", {"use_sliding_window": True, "sliding_window": None}, (None, None, None)),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 9,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (9, None, 9),
        ),
        ("qwen3", {"layer_types": ["full_attention"] * 3}, (None, None, None)),
    ],
)
def test_sliding_windows(family: str, overrides: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path) -> None:
    assert read(tmp_path, make_config(family, **overrides)).sliding_windows == expected


@pytest.mark.parametrize("style", ["transformers 4", "transformers 4 before 4.43", "transformers 5"])
def test_llama3_rope_in_every_style(style: str, tmp_path: Path) -> None:
    config = without(make_config("llama"), "rope_theta")
    if style == "transformers 5":
        config["rope_parameters"] = {**LLAMA3_ROPE, "rope_type": "llama3", "rope_theta": 500000.0}
    else:
        key = "rope_type" if style == "transformers 4" else "type"
        config |= {"rope_theta": 500000.0, "rope_scaling": {**LLAMA3_ROPE, key: "llama3"}}
    assert read(tmp_path, config).rope == RopeParameters(
        kind="llama3",
        theta=500000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"rope_type": "default"}, 256),
        ({"type": "linear", "factor": 4.0}, 256),
        ({"type": "dynamic", "factor": 4.0}, 256),
        ({"type": "yarn", "factor": 4.0}, 1024),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}, 256),
    ],
)
def test_context_length_under_rope_scaling(scaling: dict[str, Any], context: int, tmp_path: Path) -> None:
    assert read(tmp_path, make_config("llama", rope_scaling=scaling)).max_position_embeddings == context


def test_biases(tmp_path: Path) -> None:
    def flags(config: dict[str, Any]) -> tuple[bool, bool, bool, bool]:
        traits = read(tmp_path, config).traits
        return traits.qkv_bias, traits.output_bias, traits.mlp_bias, traits.qk_norm

    assert flags(make_config("llama")) == (False, False, False, False)
    assert flags(make_config("llama", attention_bias=True)) == (True, True, False, False)
    assert flags(make_config("llama", mlp_bias=True)) == (False, False, True, False)
    assert flags(make_config("qwen2")) == (True, False, False, False)
    assert flags(make_config("qwen3")) == (False, False, False, True)
    assert flags(make_config("qwen3", attention_bias=True)) == (True, True, False, True)
    assert flags(make_config("mistral")) == (False, False, False, False)


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        ("llama", {"hidden_size": "64"}, r"config\.json: hidden_size must be a positive whole number, got '64'"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers must be a positive whole number, got 0"),
        ("llama", {"vocab_size": None}, "vocab_size is missing"),
        ("llama", {"rms_norm_eps": -1.0}, "rms_norm_eps must be a positive number"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ("llama", {"hidden_act": 3}, "hidden_act must be a string"),
        ("llama", {"eos_token_id": "2"}, "eos_token_id must be a token id or a list"),
        ("llama", {"eos_token_id": [-1]}, "eos_token_id must be a token id or a list"),
        ("llama", {"architectures": []}, "architectures must list"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1 is not supported"),
        ("llama", {"rope_scaling": "yarn"}, "rope_scaling must be an object"),
        ("llama", {"rope_scaling": {"type": "longrope"}}, "'longrope' is not supported; supported are default, linear"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ("llama", {"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ("llama", {"rope_scaling": {**LLAMA3_ROPE, "type": "llama3", "high_freq_factor": 1.0}}, "must be greater than"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\).*GGUF"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types must list"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 3}, "layer_types must list"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "use_sliding_window is false"),
        ("qwen2", {"max_window_layers": -1}, "max_window_layers must be"),
    ],
)
def test_refusals_name_the_key(family: str, overrides: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, make_config(family, **overrides))


@pytest.mark.parametrize(("content", "message"), [("{", "cannot be read"), ("[]", "must hold a JSON object")])
def test_unreadable_file(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=message):
        config_from_folder(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json is missing"):
        config_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [({"torch_dtype": "bfloat16"}, "bfloat16"), ({"dtype": "float16", "torch_dtype": None}, "float16"), ({}, None)],
)
def test_the_type_of_the_weights(tmp_path: Path, keys: dict[str, Any], expected: str | None) -> None:
    values = {key: value for key, value in make_config("llama").items() if key != "torch_dtype"}
    (tmp_path / "config.json").write_text(json.dumps(values | keys))
    assert config_from_folder(tmp_path).stored_dtype == expected
