"""Builds a `DecoderModel` from a configuration and a weight source."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.errors import ModelLoadError
from engine.layers.activation import ACTIVATIONS
from engine.layers.backend import HeadNormMethod, LayerBackend, NormMethod
from engine.layers.embedding import Embedding
from engine.layers.linear import LinearMethod, make_linear
from engine.layers.rotary import RotaryEmbedding
from engine.models.config import ModelConfig
from engine.models.decoder import Attention, DecoderLayer, DecoderModel, GatedMLP
from engine.models.weights import Progress, WeightLoader, WeightSource

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


def check_shape(config: ModelConfig, origin: str) -> None:
    """Refuses shapes that the decoder cannot run. Raises `ModelLoadError`."""
    if config.num_heads % config.num_kv_heads:
        raise ModelLoadError(
            f"{origin}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise ModelLoadError(f"{origin}: head_dim must be even for rotary positions, got {config.head_dim}")
    if config.hidden_act not in ACTIVATIONS:
        raise ModelLoadError(
            f"{origin}: hidden_act {config.hidden_act!r} is not supported; supported are {', '.join(ACTIVATIONS)}"
        )


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors that a checkpoint of this configuration holds."""
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    traits = config.traits
    linears = (
        ("self_attn.q_proj", q_rows, hidden, traits.qkv_bias),
        ("self_attn.k_proj", kv_rows, hidden, traits.qkv_bias),
        ("self_attn.v_proj", kv_rows, hidden, traits.qkv_bias),
        ("self_attn.o_proj", hidden, q_rows, traits.output_bias),
        ("mlp.gate_proj", inner, hidden, traits.mlp_bias),
        ("mlp.up_proj", inner, hidden, traits.mlp_bias),
        ("mlp.down_proj", hidden, inner, traits.mlp_bias),
    )
    norms = [("input_layernorm", hidden), ("post_attention_layernorm", hidden)]
    if traits.qk_norm:
        norms += [("self_attn.q_norm", head_dim), ("self_attn.k_norm", head_dim)]
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = layer_prefix(layer)
        for name, rows, columns, has_bias in linears:
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        for name, size in norms:
            shapes[f"{prefix}{name}.weight"] = (size,)
    shapes[FINAL_NORM] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, hidden)
    return shapes


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def build_decoder(
    config: ModelConfig,
    source: WeightSource,
    dtype: torch.dtype,
    backend: LayerBackend,
    progress: Progress,
    max_positions: int,
    device: torch.device,
) -> DecoderModel:
    """Reads all weights, one tensor at a time, to where they stay on `device`.

    Raises `ModelLoadError` where the source does not fit the config.
    """
    check_shape(config, source.origin)
    builder = _Builder(config, source, dtype, backend, progress, device)
    return builder.build(RotaryEmbedding(config.rope, config.head_dim, max_positions, dtype, device))


class _Builder:
    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        dtype: torch.dtype,
        backend: LayerBackend,
        progress: Progress,
        device: torch.device,
    ) -> None:
        self._config = config
        self._backend = backend
        self._shapes: Mapping[str, tuple[int, ...]] = expected_tensors(config)
        self._loader = WeightLoader(source, dtype, device, progress)
        self._loader.expect(self._shapes, self._is_ignorable)

    def build(self, rotary: RotaryEmbedding) -> DecoderModel:
        embedding = Embedding(self._loader.tensor(EMBEDDING))
        layers = [self._layer(layer) for layer in range(self._config.num_layers)]
        norm = self._norm(FINAL_NORM)
        # NOTE: a tied head has its own, packed copy where the linear method packs; the look-up needs plain rows.
        lm_head = make_linear(embedding.weight if self._config.tie_word_embeddings else self._loader.tensor(LM_HEAD))
        return DecoderModel(self._config, embedding, layers, norm, lm_head, rotary)

    def _is_ignorable(self, name: str) -> bool:
        # Old checkpoints store the rotary frequencies, and some store the tied head a second time.
        return name.endswith(".rotary_emb.inv_freq") or (name == LM_HEAD and self._config.tie_word_embeddings)

    def _layer(self, layer: int) -> DecoderLayer:
        config = self._config
        prefix = layer_prefix(layer)
        attention = Attention(
            qkv=self._linear(*(f"{prefix}self_attn.{name}_proj" for name in "qkv")),
            output=self._linear(f"{prefix}self_attn.o_proj"),
            qk_norm=self._qk_norm(prefix) if config.traits.qk_norm else None,
            backend=self._backend.attention,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            sliding_window=config.sliding_windows[layer],
        )
        mlp = GatedMLP(
            gate_up=self._linear(f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"),
            down=self._linear(f"{prefix}mlp.down_proj"),
            gate=self._backend.gate(config.hidden_act),
        )
        return DecoderLayer(
            attention_norm=self._norm(f"{prefix}input_layernorm.weight"),
            attention=attention,
            mlp_norm=self._norm(f"{prefix}post_attention_layernorm.weight"),
            mlp=mlp,
        )

    def _linear(self, *names: str) -> LinearMethod:
        """One linear layer of the projections `names`, whose outputs stand side by side."""
        bias = None
        if f"{names[0]}.bias" in self._shapes:
            bias = self._loader.fused(f"{name}.bias" for name in names)
        return make_linear(self._loader.fused(f"{name}.weight" for name in names), bias)

    def _norm(self, name: str) -> NormMethod:
        return self._backend.norm(self._loader.tensor(name), self._config.rms_norm_eps)

    def _qk_norm(self, prefix: str) -> HeadNormMethod:
        q, k = (self._loader.tensor(f"{prefix}self_attn.{name}_norm.weight") for name in "qk")
        config = self._config
        weight = torch.cat((q.expand(config.num_heads, -1), k.expand(config.num_kv_heads, -1)))
        return self._backend.head_norm(weight, config.rms_norm_eps)
