"""The Llama family: Llama 1, 2 and 3, SmolLM and every other model of the same architecture."""

from __future__ import annotations

from engine.models.config import FamilyTraits
from engine.models.config_fields import ConfigFields
from engine.models.family import Family, all_layers_see_all


def _traits(fields: ConfigFields, num_layers: int) -> FamilyTraits:
    attention_bias = fields.boolean("attention_bias", False)
    return FamilyTraits(
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False),
        sliding_windows=all_layers_see_all(num_layers),
    )


LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    read_traits=_traits,
    defaults={"max_position_embeddings": 2048, "eos_token_id": 2},
    gguf_architectures=("llama",),
    gguf_interleaved_rope=True,
)
