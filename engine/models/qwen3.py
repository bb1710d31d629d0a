"""The dense Qwen3 family: RMS norm on each query and key head; head_dim apart from the hidden size."""

from __future__ import annotations

from engine.models.config import FamilyTraits
from engine.models.config_fields import ConfigFields
from engine.models.family import Family, mixed_windows


def _traits(fields: ConfigFields, num_layers: int) -> FamilyTraits:
    attention_bias = fields.boolean("attention_bias", False)
    return FamilyTraits(
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        sliding_windows=mixed_windows(fields, num_layers),
    )


QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    read_traits=_traits,
    defaults={
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    gguf_architectures=("qwen3",),
    qk_norm=True,
)
