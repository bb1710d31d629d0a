"""Tiny random checkpoints of every supported family, in the folder layout of the Hugging Face hub.

A checkpoint is config.json, generation_config.json, safetensors (one file or shards with an index) and a byte-level
tokenizer with a ChatML template. The weights are scaled so that the residual stream is dominated by what the layers
add: greedy continuations vary with the whole context instead of repeating one token, also with tied embeddings.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

# --- tokenizer ------------------------------------------------------------------------------------------------------

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID = 2
BOS_TOKEN_ID = 0
_WORDS = (
    " the",
    " of",
    " and",
    " in",
    " to",
    " is",
    " France",
    " capital",
    "ing",
    "er",
    "on",
    " hello",
    " world",
    "ďa",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2's table), in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def tokenizer_vocab() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary (special tokens, the 256 bytes, some merges) and the merges in order of rank."""
    symbols = byte_symbols()
    vocab = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *symbols))}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        pieces = [symbols[byte] for byte in word.encode()]
        left = pieces[0]
        for right in pieces[1:]:
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
            left += right
    return vocab, merges


VOCAB_SIZE = len(tokenizer_vocab()[0])


def make_tokenizer(path: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """Writes tokenizer.json and tokenizer_config.json of a byte-level BPE that adds no BOS into folder `path`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab, merges = tokenizer_vocab()
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS_TOKEN_ID],
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "model_max_length": 256,
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


# --- configurations -------------------------------------------------------------------------------------------------

_BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "torch_dtype": "float32",
}
_MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 24}
_QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0}
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "head_dim": 32,
    "attention_bias": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama2": {"num_key_value_heads": 4},
    "llama3": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama_linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama_dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "llama_yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    "llama_bias": {"attention_bias": True, "mlp_bias": True},
    "mqa": {"num_key_value_heads": 1},
    "smollm": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "hidden_size": 48,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
    "mistral": {**_MISTRAL, "sliding_window": 12},
    "mistral_full": {**_MISTRAL, "sliding_window": None},
    "qwen2": {**_QWEN2, "use_sliding_window": False, "sliding_window": 12, "max_window_layers": 1},
    "qwen2_sliding": {
        **_QWEN2,
        "use_sliding_window": True,
        "sliding_window": 12,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {**_QWEN3, "use_sliding_window": False, "sliding_window": None, "max_window_layers": 3},
    "qwen3_tied": {**_QWEN3, "tie_word_embeddings": True, "num_key_value_heads": 1},
}
"""Name of a tiny family to the config.json keys in which it differs from a plain grouped-query llama."""


def make_config(family: str, **overrides: Any) -> dict[str, Any]:
    """The config.json of a tiny checkpoint. An override of None for a key with no null meaning still writes null."""
    return {**_BASE, **FAMILIES[family], **overrides}


# --- weights --------------------------------------------------------------------------------------------------------


def make_weights(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 tensors of a checkpoint with Hugging Face's names."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    family = config["model_type"]
    attention_bias = config.get("attention_bias", False)
    mlp_bias = config.get("mlp_bias", False)

    def normal(*shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * std

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return normal(rows, columns, std=gain / math.sqrt(columns))

    def norm(size: int, gain: float = 1.0) -> torch.Tensor:
        return gain * (0.5 + torch.rand(size, generator=generator))

    weights = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden, std=0.1)}
    for layer in range(config["num_hidden_layers"]):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        shapes = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}
        for name, count in shapes.items():
            # NOTE: sharp attention (large q and k) makes the output depend on where in the context a token stands.
            weights[f"{attention}.{name}.weight"] = matrix(count * head_dim, hidden, 1.0 if name == "v_proj" else 1.6)
            if family == "qwen2" or attention_bias:
                weights[f"{attention}.{name}.bias"] = normal(count * head_dim, std=0.5)
        weights[f"{attention}.o_proj.weight"] = matrix(hidden, heads * head_dim, 1.5)
        if attention_bias:
            weights[f"{attention}.o_proj.bias"] = normal(hidden, std=0.2)
        if family == "qwen3":
            weights[f"{attention}.q_norm.weight"] = norm(head_dim, 1.3)
            weights[f"{attention}.k_norm.weight"] = norm(head_dim, 1.3)
        for name, rows, columns in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            weights[f"{mlp}.{name}.weight"] = matrix(rows, columns, 1.5)
            if mlp_bias:
                weights[f"{mlp}.{name}.bias"] = normal(rows, std=0.2)
        weights[f"model.layers.{layer}.input_layernorm.weight"] = norm(hidden)
        weights[f"model.layers.{layer}.post_attention_layernorm.weight"] = norm(hidden)
    weights["model.norm.weight"] = norm(hidden, 3.0)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(config["vocab_size"], hidden, std=0.1)
    return weights


def save_weights(path: Path, weights: dict[str, torch.Tensor], num_shards: int = 1) -> None:
    """Writes model.safetensors, or `num_shards` shards with model.safetensors.index.json, into folder `path`."""
    if num_shards == 1:
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        members = names[shard::num_shards]
        save_file({name: weights[name] for name in members}, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(members, file)
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def make_checkpoint(
    family: str,
    path: Path,
    seed: int = 0,
    *,
    num_shards: int = 1,
    dtype: torch.dtype = torch.float32,
    tokenizer: bool = True,
    **overrides: Any,
) -> Path:
    """Writes a tiny random checkpoint of `family` (a key of `FAMILIES`) into folder `path`, and returns `path`.

    overrides: further keys of config.json. dtype: of the stored weights. num_shards: above 1, shards with an index.
    The vocabulary has `VOCAB_SIZE` tokens, the context 256 positions; EOS is `EOS_TOKEN_ID`.
    """
    config = make_config(family, **overrides)
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"], "do_sample": False}
    (path / "generation_config.json").write_text(json.dumps(generation))
    weights = {name: tensor.to(dtype).contiguous() for name, tensor in make_weights(config, seed).items()}
    save_weights(path, weights, num_shards)
    if tokenizer:
        make_tokenizer(path)
    return path
