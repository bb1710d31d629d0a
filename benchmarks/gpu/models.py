"""Shapes of the models that are measured, with random weights: speed depends on nothing else of a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    "qwen2.5-0.5b": _COMMON
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
}
"""config.json by section."""

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_scaling": None,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What the bytes of a step are counted from."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    is_tied: bool

    def step_bytes(self, num_parameters: int, batch: int, num_keys: float, itemsize: int) -> float:
        """Bytes that a decode step reads at least: each weight once, and each sequence's keys and values.

        num_keys: of one sequence. NOTE: of the embedding only a few rows are read, unless it is the head as well.
        """
        weights = num_parameters - (0 if self.is_tied else self.vocab_size * self.hidden_size)
        values = 2 * batch * num_keys * self.num_layers * self.num_kv_heads * self.head_dim
        return itemsize * (weights + values)


def config_of(name: str, *, is_smoke: bool) -> dict[str, Any]:
    config = CONFIGS[name]
    if is_smoke:
        config = {key: value for key, value in (config | TINY).items() if value is not None}
    return config


def shape_of(config: dict[str, Any]) -> Shape:
    return Shape(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["hidden_size"] // config["num_attention_heads"],
        is_tied=config["tie_word_embeddings"],
    )


def write_config(config: dict[str, Any], folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
