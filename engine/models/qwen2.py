"""The Qwen2 and Qwen2.5 family: bias on q, k and v; some layers may have a sliding window."""

from __future__ import annotations

from engine.models.config import FamilyTraits
from engine.models.config_fields import ConfigFields
from engine.models.family import Family, mixed_windows


def _traits(fields: ConfigFields, num_layers: int) -> FamilyTraits:
    return FamilyTraits(qkv_bias=True, sliding_windows=mixed_windows(fields, num_layers))


QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    read_traits=_traits,
    defaults={
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    gguf_architectures=("qwen2",),
)
