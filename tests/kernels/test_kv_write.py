"""`kernels.kv_write` against its torch twin."""

from __future__ import annotations

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.reference.kv_write import kv_write as reference

SHAPES = [(1, 1, 64, 16), (5, 2, 64, 16), (7, 3, 80, 32), (4, 5, 96, 64), (3, 8, 128, 16), (2, 17, 256, 5)]
"""(tokens, KV heads, head dim, block size)."""


def nan_cache(num_blocks: int, block_size: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Heads before slots in memory, as the CPU's back end lays them out, so that no stride is what one would guess."""
    return torch.full((num_blocks, num_heads, block_size, head_dim), torch.nan, dtype=dtype).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_kv_write(dtype: torch.dtype, shape: tuple[int, int, int, int]) -> None:
    num_tokens, num_heads, head_dim, block_size = shape
    generator = torch.Generator().manual_seed(head_dim)
    # k and v are views of one projection, queries first.
    fused = torch.randn(num_tokens, 3 + 2 * num_heads, head_dim, generator=generator).to(dtype)
    k, v = fused[:, 3 : 3 + num_heads], fused[:, 3 + num_heads :]
    slots = torch.randperm(4 * block_size, generator=generator)[:num_tokens]
    slots[num_tokens // 2] = -1
    caches = [nan_cache(4, block_size, num_heads, head_dim, dtype) for _ in range(4)]
    caches[1] = caches[1].contiguous()  # K and V may differ in their strides
    before = fused.clone()
    kv_write(k, v, caches[0], caches[1], slots)
    reference(k, v, caches[2], caches[3], slots)
    # Slots that no token has stay NaN in both.
    torch.testing.assert_close(caches[0], caches[2], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(caches[1], caches[3], rtol=0, atol=0, equal_nan=True)
    assert torch.isfinite(caches[0]).sum() == int((slots >= 0).sum()) * num_heads * head_dim
    assert torch.equal(fused, before)


def test_no_tokens() -> None:
    cache = torch.full((1, 16, 1, 64), torch.nan)
    empty = torch.empty(0, 1, 64)
    kv_write(empty, empty, cache, cache, torch.empty(0, dtype=torch.int64))
    assert cache.isnan().all()
