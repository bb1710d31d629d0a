"""Attention over the paged cache by Triton kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from engine.layers.attention import AttentionMetadata, KVCache
from engine.layers.rotary import Rotation
from kernels.kv_write import kv_write
from kernels.paged_attention import paged_attention
from kernels.rotary import rotary_, rotary_kv_write


class TritonAttention:
    """The `AttentionBackend` of the GPU. It keeps nothing from call to call, so that a CUDA graph can hold its calls.

    num_splits: segments that each sequence's keys are cut into; None, as it should be but for a warm-up that wants both
    kinds of kernel, leaves that to the kernel's own choice.
    """

    def __init__(self) -> None:
        self.num_splits: int | None = None

    def allocate_cache(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        """As `AttentionBackend.allocate_cache`, dense."""
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        return KVCache(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))

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
        """As `AttentionBackend.forward`."""
        num_heads = qk.shape[1] - v.shape[1]
        if metadata.is_decode_only:
            # NOTE: a decode has too little work to hide a launch in, so one kernel turns and writes.
            rotary_kv_write(qk, v, rotation.cos, rotation.sin, cache.k, cache.v, metadata.slot_mapping)
        else:
            rotary_(qk, rotation.cos, rotation.sin)
            kv_write(qk[:, num_heads:], v, cache.k, cache.v, metadata.slot_mapping)
        q = qk[:, :num_heads]
        out = q.new_empty(q.shape)
        for part in _parts(metadata):
            paged_attention(
                q[part.tokens],
                cache.k,
                cache.v,
                query_starts=part.query_starts,
                seq_lens=metadata.seq_lens[part.sequences],
                block_tables=metadata.block_tables[part.sequences],
                max_query_len=part.max_query_len,
                max_seq_len=metadata.max_seq_len,
                scale=scale,
                sliding_window=sliding_window,
                num_splits=self.num_splits,
                out=out[part.tokens],
            )
        return out.view(qk.shape[0], -1)


class _Part(NamedTuple):
    """Sequences of a batch that attend in one launch. query_starts: counted from the first of their tokens."""

    sequences: slice
    tokens: slice
    query_starts: torch.Tensor
    max_query_len: int


def _parts(metadata: AttentionMetadata) -> Iterator[_Part]:
    """The whole batch, or its decodes and the rest.

    NOTE: in the chunk's launch a decode would get the chunk's tile, with one of many places for queries used, and no
    splits: a decode over many keys would be what the step waits for.
    """
    count, starts = metadata.num_decodes, metadata.query_starts
    if metadata.prefill_starts is None:
        yield _Part(slice(None), slice(None), starts, metadata.max_query_len)
        return
    yield _Part(slice(count), slice(count), starts[: count + 1], 1)
    yield _Part(slice(count, None), slice(count, None), metadata.prefill_starts, metadata.max_query_len)
