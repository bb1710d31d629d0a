"""The seam between models and attention back ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.layers.rotary import Rotation


@dataclass(frozen=True, slots=True)
class KVCache:
    """KV of one layer. k, v: (num_blocks, block_size, num_kv_heads, head_dim); block 0 is the dummy block.

    The back end that reads a cache also allocates it, and chooses the strides within a block.
    """

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The flat batch of one step: B sequences, T tokens, sequences with one query token (decodes) first.

    query_starts: int32 (B + 1), token offsets of the sequences in the flat batch; query_starts[B] == T.
    seq_lens: int32 (B), keys of each sequence after this step's tokens are written (start + new tokens).
    block_tables: int32 (B, most blocks of a sequence), padded with 0.
    slot_mapping: int64 (T), block_id * block_size + offset of each token.
    num_decodes: sequences at the front of the batch with exactly one query token.
    max_query_len, max_seq_len: upper bounds of the lengths. NOTE: Python numbers, here and below: a back end decides
        by them on the host, and never reads anything back from a device.
    query_lens, seq_lens_list: every length, where the batch lies on the CPU; else empty.
    prefill_starts: int32 (B - num_decodes + 1), as query_starts, of the sequences behind the decodes, counted from the
        first of their tokens; on a device only, and None where it would be query_starts or empty.
    """

    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    query_lens: tuple[int, ...] = ()
    seq_lens_list: tuple[int, ...] = ()
    prefill_starts: torch.Tensor | None = None

    @property
    def is_decode_only(self) -> bool:
        """Whether every sequence has one query token."""
        return self.max_query_len == 1


class AttentionBackend(Protocol):
    """Causal attention over the paged cache, the rotation of its queries and keys included."""

    def allocate_cache(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        """A zeroed cache of one layer, of `num_blocks` blocks, the dummy block counted."""
        ...

    def forward(
        self,
        qk: torch.Tensor,
        v: torch.Tensor,
        rotation: Rotation,
        cache: KVCache,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Rotates queries and keys, writes keys and values to their slots, then attends.

        qk: (T, num_heads + num_kv_heads, head_dim), queries first; may be changed. v: (T, num_kv_heads, head_dim).
        Returns (T, num_heads * head_dim).
        sliding_window: a token sees the last `sliding_window` positions, itself included; None sees all.
        """
        ...
