"""Reads a `ModelConfig` from the metadata of a GGUF file."""

from __future__ import annotations

import struct
from typing import Any

from engine.errors import ModelLoadError
from engine.layers.rope_parameters import RopeParameters, yarn_temperature
from engine.models.config import FamilyTraits, ModelConfig
from engine.models.config_fields import ConfigFields
from engine.models.families import find_gguf_family
from engine.models.gguf_file import GgufFile

_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Ends of text, of turn and of message: each ends a sequence."""


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """The configuration of the model in `file`.

    Raises `ModelLoadError` for an unsupported architecture or a setting that cannot be served.
    """
    origin = str(file.path)
    architecture = ConfigFields(file.metadata, origin).string("general.architecture")
    family = find_gguf_family(architecture, origin)
    fields = ConfigFields(_uniform(file), origin, prefix=f"{architecture}.")
    if fields.raw("expert_count", 0) != 0:
        raise fields.fail("expert_count", "says this is a mixture of experts, which is not supported")
    num_layers = fields.positive_int("block_count")
    num_heads = fields.positive_int("attention.head_count")
    hidden_size = fields.positive_int("embedding_length")
    head_dim = fields.positive_int("attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.raw(key, head_dim) != head_dim:
            raise fields.fail(key, f"other than the head's {head_dim} dimensions is not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{origin}: missing tensors: token_embd.weight")
    rope, max_positions = _rope(file, fields, head_dim, fields.positive_int("context_length"))
    # NOTE: 0 says that no layer slides.
    window = fields.positive_int("attention.sliding_window") if fields.raw("attention.sliding_window") else None
    return ModelConfig(
        architecture=family.architectures[0],
        family=family.name,
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=fields.positive_int("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.positive_int("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rms_norm_eps=fields.positive_float("attention.layer_norm_rms_epsilon"),
        hidden_act="silu",
        tie_word_embeddings="output.weight" not in file.tensors,
        rope=rope,
        traits=FamilyTraits(
            qkv_bias="blk.0.attn_q.bias" in file.tensors,
            output_bias="blk.0.attn_output.bias" in file.tensors,
            mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
            qk_norm=family.qk_norm,
            sliding_windows=(window,) * num_layers,
        ),
        eos_token_ids=_eos_token_ids(file),
    )


def _uniform(file: GgufFile) -> dict[str, Any]:
    """The metadata, with a list of one repeated number (a value for each layer) given as that number."""

    def single(value: Any) -> Any:
        is_repeated = isinstance(value, list) and value and isinstance(value[0], int) and len(set(value)) == 1
        return value[0] if is_repeated else value

    return {key: single(value) for key, value in file.metadata.items() if not key.startswith("tokenizer.")}


def _eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    fields = ConfigFields(file.metadata, str(file.path), prefix="tokenizer.ggml.")
    return tuple(dict.fromkeys(token_id for key in _EOS_KEYS for token_id in fields.token_ids(key)))


def _rope(file: GgufFile, fields: ConfigFields, head_dim: int, max_positions: int) -> tuple[RopeParameters, int]:
    """The rotation, and the context that it is good for."""
    theta = fields.positive_float("rope.freq_base", 10000.0)
    divisors = _frequency_divisors(file, head_dim)
    kind = fields.string("rope.scaling.type", "none")
    if kind == "none":
        return RopeParameters(theta=theta, frequency_divisors=divisors), max_positions
    factor = fields.positive_float("rope.scaling.factor")
    if kind == "linear":
        return RopeParameters(kind="linear", theta=theta, factor=factor, frequency_divisors=divisors), max_positions
    if kind == "yarn":
        original = fields.positive_int("rope.scaling.original_context_length", max_positions)
        parameters = RopeParameters(
            kind="yarn",
            theta=theta,
            factor=factor,
            original_max_position_embeddings=original,
            beta_fast=fields.positive_float("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.positive_float("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=yarn_temperature(factor) * fields.positive_float("rope.scaling.attn_factor", 1.0),
            frequency_divisors=divisors,
        )
        return parameters, max(max_positions, int(original * factor))
    raise fields.fail("rope.scaling.type", f"{kind!r} is not supported; supported are none, linear, yarn")


def _frequency_divisors(file: GgufFile, head_dim: int) -> tuple[float, ...] | None:
    """Llama 3.1's scaling as llama.cpp's converter stores it: a divisor for each frequency."""
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.type.name != "F32" or tensor.shape != (head_dim // 2,):
        raise ModelLoadError(
            f"{file.path}: tensor rope_freqs.weight must be F32 of shape [{head_dim // 2}], "
            f"got {tensor.type.name} of shape {list(tensor.shape)}"
        )
    return struct.unpack(f"<{head_dim // 2}f", file.data(tensor))
