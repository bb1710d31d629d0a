"""The seam between models and attention back ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


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
    query_lens, seq_lens_list: the same as Python ints, so that nothing is read back from a device.
    """

    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    query_lens: tuple[int, ...]
    seq_lens_list: tuple[int, ...]


class AttentionBackend(Protocol):
    """Causal attention over the paged cache."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: KVCache,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Writes k and v to their slots, then attends.

        q: (T, num_heads, head_dim); k, v: (T, num_kv_heads, head_dim). Returns (T, num_heads * head_dim).
        sliding_window: a token sees the last `sliding_window` positions, itself included; None sees all.
        """
        ...
