"""The decoder that all families share: pre-norm attention with rotary positions, and a gated MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.layers.attention import AttentionBackend, AttentionMetadata, KVCache
from engine.layers.backend import Gate, HeadNormMethod, NormMethod
from engine.layers.embedding import Embedding
from engine.layers.linear import LinearMethod
from engine.layers.rotary import RotaryEmbedding, Rotation
from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention of one layer.

    qkv: to (num_heads + 2 · num_kv_heads) heads, queries first, then keys, then values. qk_norm: over the heads of
    queries and keys before they are rotated, or None.
    """

    qkv: LinearMethod
    output: LinearMethod
    qk_norm: HeadNormMethod | None
    backend: AttentionBackend
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, cache: KVCache, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """x: (T, hidden_size), normed. Returns (T, hidden_size)."""
        num_rotated = self.num_heads + self.num_kv_heads
        heads = self.qkv(x).view(x.shape[0], num_rotated + self.num_kv_heads, self.head_dim)
        qk, v = heads[:, :num_rotated], heads[:, num_rotated:]
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        scale = self.head_dim**-0.5
        return self.output(self.backend.forward(qk, v, rotation, cache, metadata, scale, self.sliding_window))


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(activation(gate) · up). gate_up: gate and up in one projection, the gate first."""

    gate_up: LinearMethod
    down: LinearMethod
    gate: Gate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: (T, hidden_size), normed. Returns (T, hidden_size)."""
        return self.down(self.gate(self.gate_up(x)))


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    attention_norm: NormMethod
    attention: Attention
    mlp_norm: NormMethod
    mlp: GatedMLP


class DecoderModel:
    """Embedding, layers, final norm and the projection to logits.

    Call it under `torch.inference_mode()`. Positions must be below `max_positions`.
    """

    def __init__(
        self,
        config: ModelConfig,
        embedding: Embedding,
        layers: Sequence[DecoderLayer],
        norm: NormMethod,
        lm_head: LinearMethod,
        rotary: RotaryEmbedding,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = tuple(layers)
        self._norm = norm
        self._lm_head = lm_head
        self._rotary = rotary

    @property
    def max_positions(self) -> int:
        """Positions that the rotary table covers."""
        return self._rotary.max_positions

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[KVCache],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Hidden states after the final norm, (T, hidden_size), for a flat batch of T tokens.

        input_ids, positions: int64 (T). caches: one a layer; the tokens' keys and values are written to them.
        """
        rotation = self._rotary.lookup(positions)
        residual = self._embedding(input_ids)
        update: torch.Tensor | None = None
        for layer, cache in zip(self._layers, caches, strict=True):
            x = layer.attention_norm(residual) if update is None else layer.attention_norm.add(residual, update)
            update = layer.attention(x, rotation, cache, metadata)
            x = layer.mlp_norm.add(residual, update)
            update = layer.mlp(x)
        return self._norm(residual) if update is None else self._norm.add(residual, update)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 logits, (R, vocab_size), of the final hidden states of R rows, (R, hidden_size).

        out: where they are written, or None for a new tensor.
        """
        logits = self._lm_head(hidden)
        return logits.float() if out is None else out.copy_(logits)
