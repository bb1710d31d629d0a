"""Configuration of a decoder model, read from config.json or GGUF metadata (no torch)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.layers.rope_parameters import RopeParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """What differs between the families that share the Llama decoder.

    qkv_bias, output_bias, mlp_bias: bias of the q/k/v projections, of the attention's output, of the three MLP layers.
    qk_norm: RMS norm of each query and key head before the rotation.
    sliding_windows: a number of positions for each layer, None where the layer sees all.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model's shape and constants.

    architecture: Hugging Face's class name, e.g. LlamaForCausalLM. family: name in the registry.
    max_position_embeddings: tokens of context that the model is good for, rope scaling counted in.
    eos_token_ids: every id that ends a sequence, in no particular order.
    stored_dtype: the type of the checkpoint's weights by torch's name, where the configuration says it.
    """

    architecture: str
    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    rope: RopeParameters
    traits: FamilyTraits
    eos_token_ids: tuple[int, ...] = ()
    stored_dtype: str | None = None

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """Per layer: how many positions a token sees, itself included; None sees all."""
        return self.traits.sliding_windows
