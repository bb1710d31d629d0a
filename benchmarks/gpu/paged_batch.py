"""Random batches over a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.gpu.device import Device
from kernels.paged_attention import paged_attention
from kernels.tiles import Tile


@dataclass(frozen=True, slots=True)
class Heads:
    """num_heads query heads share num_kv_heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.num_heads}/{self.num_kv_heads}x{self.head_dim}"

    def decode_bytes(self, batch: int, num_keys: int) -> int:
        """What `batch` decodes move in bfloat16: each key and value once; queries and results are next to nothing."""
        return 2 * 2 * batch * self.head_dim * (num_keys * self.num_kv_heads + self.num_heads)

    def prefill_operations(self, num_seqs: int, num_tokens: int) -> int:
        """Two products, each of 2 operations a pair of query and key; a causal mask leaves half of the pairs."""
        return 4 * num_seqs * (num_tokens * (num_tokens + 1) // 2) * self.num_heads * self.head_dim


LLAMA_8B = Heads(32, 8, 128)
QWEN_05B = Heads(14, 2, 64)


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """What `paged_attention` takes. Blocks lie in random order; slots past a sequence's keys are NaN."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_seq_len: int

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            "query_starts": self.query_starts,
            "seq_lens": self.seq_lens,
            "block_tables": self.block_tables,
        }


def paged_batch(
    device: Device,
    heads: Heads,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    *,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
) -> PagedBatch:
    """A batch of sequences with so many new tokens and so many keys, these included."""
    where = device.torch_device
    counts = [-(-length // block_size) for length in seq_lens]
    order = (torch.randperm(sum(counts), device=where, generator=device.generator) + 1).to(torch.int32)
    tables = torch.zeros(len(seq_lens), max(counts), dtype=torch.int32, device=where)
    caches = [
        torch.full(
            (sum(counts) + 1, block_size, heads.num_kv_heads, heads.head_dim), torch.nan, dtype=dtype, device=where
        )
        for _ in range(2)
    ]
    first = 0
    for i, (count, length) in enumerate(zip(counts, seq_lens, strict=True)):
        blocks = order[first : first + count]
        tables[i, :count] = blocks
        first += count
        places = torch.arange(length, device=where)
        slots = blocks[places // block_size].long() * block_size + places % block_size
        for cache in caches:
            rows = device.randn(length, heads.num_kv_heads, heads.head_dim, dtype=dtype)
            cache.view(-1, heads.num_kv_heads, heads.head_dim).index_copy_(0, slots, rows)
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    # NOTE: a view of the fused projection, as the models have it.
    fused = device.randn(sum(query_lens), heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim, dtype=dtype)
    return PagedBatch(
        q=fused[:, : heads.num_heads],
        k_cache=caches[0],
        v_cache=caches[1],
        query_starts=starts.to(where),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=where),
        block_tables=tables,
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
    )


def attend(batch: PagedBatch, *, tile: Tile | None = None, num_splits: int | None = None) -> torch.Tensor:
    """`paged_attention` over the batch."""
    return paged_attention(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        **batch.tensors,
        max_query_len=batch.max_query_len,
        max_seq_len=batch.max_seq_len,
        scale=batch.q.shape[2] ** -0.5,
        tile=tile,
        num_splits=num_splits,
    )
