"""Reads a `ModelConfig` from a Hugging Face folder: config.json and generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.layers.rope_parameters import RopeParameters, yarn_temperature
from engine.models.config import ModelConfig
from engine.models.config_fields import ConfigFields
from engine.models.families import find_family


def config_from_folder(folder: Path) -> ModelConfig:
    """The configuration of the checkpoint in `folder`.

    Raises `ModelLoadError` for an unreadable file, an unsupported family, or a setting that cannot be served.
    """
    path = folder / "config.json"
    values = _read_json(path)
    origin = str(path)
    family = find_family(_architecture(values, origin), origin)
    fields = ConfigFields(
        # NOTE: a default stands in for an absent key only: null has a meaning of its own (no window, no grouping).
        {**family.defaults, **values},
        origin,
    )
    _refuse_quantization(fields)
    num_layers = fields.positive_int("num_hidden_layers")
    num_heads = fields.positive_int("num_attention_heads")
    hidden_size = fields.positive_int("hidden_size")
    max_positions = fields.positive_int("max_position_embeddings")
    rope, max_positions = _rope(fields, max_positions)
    return ModelConfig(
        architecture=_architecture(values, origin),
        family=family.name,
        vocab_size=fields.positive_int("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.positive_int("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.positive_int("num_key_value_heads", num_heads),
        head_dim=fields.positive_int("head_dim", hidden_size // num_heads),
        max_position_embeddings=max_positions,
        rms_norm_eps=fields.positive_float("rms_norm_eps", 1e-6),
        hidden_act=fields.string("hidden_act", "silu"),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        rope=rope,
        traits=family.read_traits(fields, num_layers),
        eos_token_ids=_eos_token_ids(folder, fields),
        # NOTE: transformers 5 writes `dtype`, earlier releases wrote `torch_dtype`.
        stored_dtype=fields.optional_string("dtype") or fields.optional_string("torch_dtype"),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path} is missing: a Hugging Face model folder holds a config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return values


def _architecture(values: dict[str, Any], origin: str) -> str:
    names = values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelLoadError(f"{origin}: architectures must list the model's class name, got {names!r}")
    return names[0]


def _refuse_quantization(fields: ConfigFields) -> None:
    quantization = fields.raw("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        raise fields.fail(
            "quantization_config",
            f"says the weights are quantised ({method}), which is not supported; "
            "use the original safetensors weights, or a GGUF file",
        )


def _eos_token_ids(folder: Path, fields: ConfigFields) -> tuple[int, ...]:
    ids = list(fields.token_ids("eos_token_id"))
    path = folder / "generation_config.json"
    if path.exists():
        ids += ConfigFields(_read_json(path), str(path)).token_ids("eos_token_id")
    return tuple(dict.fromkeys(ids))


def _rope(fields: ConfigFields, max_positions: int) -> tuple[RopeParameters, int]:
    """The rotation, and the context that it is good for.

    transformers 5 writes all of it into `rope_parameters`; earlier releases wrote `rope_theta` and `rope_scaling`.
    """
    scaling = fields.raw("rope_scaling") or fields.raw("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise fields.fail("rope_scaling", f"must be an object or null, got {scaling!r}")
    rope = ConfigFields(scaling, f"{fields.origin}: rope scaling")
    theta = rope.positive_float("rope_theta", fields.positive_float("rope_theta", 10000.0))
    for source in (rope, fields):
        if source.raw("partial_rotary_factor", 1.0) != 1.0:
            raise source.fail("partial_rotary_factor", "other than 1 is not supported")
    kind = rope.string("rope_type", rope.string("type", "default"))
    if kind == "default":
        return RopeParameters(theta=theta), max_positions
    if kind == "dynamic":
        # NOTE: dynamic NTK scaling changes nothing up to max_position_embeddings, and past it the frequencies would
        # depend on the length of the sequence, which cached keys cannot follow: the context ends there.
        return RopeParameters(theta=theta), max_positions
    if kind == "linear":
        return RopeParameters(kind="linear", theta=theta, factor=rope.positive_float("factor")), max_positions
    original = rope.positive_int("original_max_position_embeddings", max_positions)
    original = fields.positive_int("original_max_position_embeddings", original)
    if kind == "llama3":
        parameters = RopeParameters(
            kind="llama3",
            theta=theta,
            factor=rope.positive_float("factor"),
            low_freq_factor=rope.positive_float("low_freq_factor"),
            high_freq_factor=rope.positive_float("high_freq_factor"),
            original_max_position_embeddings=original,
        )
        if parameters.high_freq_factor <= parameters.low_freq_factor:
            raise rope.fail("high_freq_factor", "must be greater than low_freq_factor")
        return parameters, max_positions
    if kind == "yarn":
        factor = rope.positive_float("factor", max_positions / original)
        parameters = RopeParameters(
            kind="yarn",
            theta=theta,
            factor=factor,
            original_max_position_embeddings=original,
            beta_fast=rope.positive_float("beta_fast", 32.0),
            beta_slow=rope.positive_float("beta_slow", 1.0),
            truncate=rope.boolean("truncate", True),
            attention_factor=_yarn_attention_factor(rope, factor),
        )
        # NOTE: some files state the stretched context, others (Qwen's) the trained one.
        return parameters, max(max_positions, int(original * factor))
    raise rope.fail("rope_type", f"{kind!r} is not supported; supported are default, linear, dynamic, llama3, yarn")


def _yarn_attention_factor(rope: ConfigFields, factor: float) -> float:
    if rope.raw("attention_factor") is not None:
        return rope.positive_float("attention_factor")
    if rope.raw("mscale") and rope.raw("mscale_all_dim"):
        above = yarn_temperature(factor, rope.positive_float("mscale"))
        return above / yarn_temperature(factor, rope.positive_float("mscale_all_dim"))
    return yarn_temperature(factor)
