"""Tiny random models as GGUF files, laid out as llama.cpp's converter lays them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.tiny_models import (
    BOS_TOKEN_ID,
    CHAT_TEMPLATE,
    EOS_TOKEN_ID,
    SPECIAL_TOKENS,
    make_config,
    make_weights,
    tokenizer_vocab,
)

Quantizer = Callable[[np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType]]
"""From float32 values (rows, columns) to stored data and its type."""

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def quantize_as(name: str) -> Quantizer:
    """A quantiser to the named type, as the gguf package does it."""
    kind = gguf.GGMLQuantizationType[name]
    return lambda values: (gguf.quants.quantize(values, kind), kind)


def make_gguf(
    family: str,
    path: Path,
    seed: int = 0,
    *,
    quantizer: Quantizer | None = None,
    rope_freqs: list[float] | None = None,
    metadata: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray] | None = None,
    **overrides: Any,
) -> Path:
    """Writes file `path` with the weights of `make_checkpoint(family, ..., seed, **overrides)`; returns `path`.

    quantizer: applied to every matrix; None keeps float32. Vectors are float32 always. metadata: further keys, under
    the architecture's prefix (an int, float, str or list each). rope_freqs: the tensor rope_freqs.weight.
    """
    config = make_config(family, **overrides)
    architecture = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, architecture)
    _write_config(writer, config)
    for key, value in (metadata or {}).items():
        adds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        adds[type(value)](f"{architecture}.{key}", value)
    _write_tokenizer(writer)
    for name, tensor in make_weights(config, seed).items():
        stem, kind = name.rsplit(".", 1)
        is_paired = architecture == "llama" and stem.endswith(("q_proj", "k_proj"))
        values = (interleave(tensor, heads if stem.endswith("q_proj") else kv_heads) if is_paired else tensor).numpy()
        if values.ndim == 2 and quantizer is not None:
            data, data_type = quantizer(values)
            writer.add_tensor(gguf_name(stem, kind), data, raw_dtype=data_type)
        else:
            writer.add_tensor(gguf_name(stem, kind), values)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_freqs, dtype=np.float32))
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, values)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(stem: str, kind: str) -> str:
    """GGUF's name of the tensor `stem`.`kind`."""
    if not stem.startswith("model.layers."):
        return f"{_NAMES[stem]}.{kind}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def interleave(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head reordered from two halves to neighbouring pairs, as llama.cpp's converter does for llama."""
    rows = tensor.shape[0]
    halves = tensor.reshape(heads, 2, rows // heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def _write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    vocab, merges = tokenizer_vocab()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocab))
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in vocab])
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(BOS_TOKEN_ID)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
