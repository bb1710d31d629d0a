"""Batches over a paged cache for tests of attention, and the comparison with the twin in torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernels.paged_attention import paged_attention
from kernels.reference.paged_attention import paged_attention as reference

TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Largest difference from the twin's float32 result, beside an epsilon of the dtype times the result.

bfloat16: weights are cut off to it before they multiply values, by the interpreter; GPUs round them.
"""


@dataclass
class Batch:
    """q: a view of a fused projection. Slots without a token hold NaN, as does what the kernel is to write."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_seq_len: int

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.q.shape[2])

    def run(self, **options: Any) -> torch.Tensor:
        out = torch.full(self.q.shape, torch.nan, dtype=self.q.dtype)
        written = paged_attention(**vars(self), scale=self.scale, out=out, **options)
        assert written is out
        return out

    def expected(self, **options: Any) -> torch.Tensor:
        tensors = {name: value for name, value in vars(self).items() if not name.startswith("max_")}
        return reference(**tensors, scale=self.scale, **options)


def make_batch(
    lens: list[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    padding: int = 0,
    seed: int = 0,
) -> Batch:
    """lens: queries and keys of each sequence. padding: rows of q after the last sequence."""
    generator = torch.Generator().manual_seed(seed)
    query_lens, seq_lens = zip(*lens, strict=True)
    counts = [-(-seq_len // block_size) for seq_len in seq_lens]
    num_blocks = 1 + sum(counts)
    shape = (num_blocks, kv_heads, block_size, head_dim)
    k_cache, v_cache = (torch.full(shape, torch.nan, dtype=dtype).transpose(1, 2) for _ in range(2))
    # NOTE: the table goes on with the dummy block 0, which holds NaN as well.
    block_tables = torch.zeros(len(lens), max(counts) + 2, dtype=torch.int32)
    free = (1 + torch.randperm(num_blocks - 1, generator=generator)).tolist()
    for row, (count, seq_len) in enumerate(zip(counts, seq_lens, strict=True)):
        blocks = [free.pop() for _ in range(count)]
        block_tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
        for cache in (k_cache, v_cache):
            for index, block in enumerate(blocks):
                used = min(block_size, seq_len - index * block_size)
                cache[block, :used] = torch.randn(used, kv_heads, head_dim, generator=generator).to(dtype)
    num_tokens = sum(query_lens) + padding
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * head_dim, generator=generator).to(dtype)
    starts = [sum(query_lens[:index]) for index in range(len(lens) + 1)]
    return Batch(
        qkv[:, : heads * head_dim].view(num_tokens, heads, head_dim),
        k_cache,
        v_cache,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(seq_lens, dtype=torch.int32),
        block_tables,
        max(query_lens),
        max(seq_lens),
    )


def check(batch: Batch, *, expect: dict[str, Any] | None = None, **options: Any) -> None:
    """options go to the kernel, `expect` to the twin as well."""
    expect = expect or {}
    out = batch.run(**expect, **options)
    num_tokens = int(batch.query_starts[-1])
    dtype = batch.q.dtype
    rtol = torch.finfo(dtype).eps
    torch.testing.assert_close(
        out[:num_tokens], batch.expected(**expect)[:num_tokens], rtol=rtol, atol=TOLERANCE[dtype], equal_nan=False
    )
    assert out[num_tokens:].isnan().all(), "rows of no sequence were written"
