"""The Mistral family: Llama with a sliding window over all layers. Its GGUF files call themselves "llama"."""

from __future__ import annotations

from engine.models.config import FamilyTraits
from engine.models.config_fields import ConfigFields
from engine.models.family import Family


def _traits(fields: ConfigFields, num_layers: int) -> FamilyTraits:
    # NOTE: null means no window, but a file without the key means the first Mistral's 4096, as transformers reads it.
    window = fields.optional_positive_int("sliding_window") if "sliding_window" in fields else 4096
    return FamilyTraits(sliding_windows=(window,) * num_layers)


MISTRAL = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    read_traits=_traits,
    defaults={"max_position_embeddings": 131072, "num_key_value_heads": 8, "eos_token_id": 2},
)
