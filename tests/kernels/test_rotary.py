"""`kernels.rotary` against its torch twin."""

from __future__ import annotations

import pytest
import torch

from kernels import rotary as kernels
from kernels.reference import rotary as reference

DTYPES = (torch.float32, torch.bfloat16)


def angles(num_tokens: int, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin at positions 3, 4, ...; the first half of sin negated."""
    frequencies = 10000.0 ** (torch.arange(0, head_dim, 2) / -head_dim)
    turns = torch.outer(torch.arange(3.0, 3.0 + num_tokens), frequencies).unsqueeze(1)
    cos, sin = turns.cos().to(dtype), turns.sin().to(dtype)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """In bfloat16 two roundings: the interpreter cuts off where devices round. A sum near 0 has its terms' errors."""
    rtol, atol = (2**-6, 2**-6) if expected.dtype == torch.bfloat16 else (1e-5, 1e-6)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def test_positions_turn_pairs_of_halves() -> None:
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    a, b = torch.tensor(0.5), torch.tensor(1.5)
    cos = torch.stack((a.cos(), b.cos(), a.cos(), b.cos())).view(1, 1, 4)
    sin = torch.stack((-a.sin(), -b.sin(), a.sin(), b.sin())).view(1, 1, 4)
    expected = torch.stack(
        (
            1 * a.cos() - 3 * a.sin(),
            2 * b.cos() - 4 * b.sin(),
            3 * a.cos() + 1 * a.sin(),
            4 * b.cos() + 2 * b.sin(),
        )
    )
    torch.testing.assert_close(kernels.rotary_(x.clone(), cos, sin).view(4), expected)
    torch.testing.assert_close(reference.rotary_(x.clone(), cos, sin).view(4), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 64), (3, 5, 80), (2, 7, 96), (2, 40, 128), (2, 3, 256), (4, 2, 6)])
def test_rotary(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    num_tokens, num_heads, head_dim = shape
    generator = torch.Generator().manual_seed(head_dim)
    fused = torch.randn(num_tokens, num_heads + 2, head_dim, generator=generator).to(dtype)
    expected = fused.clone()
    cos, sin = angles(num_tokens, head_dim, dtype)
    reference.rotary_(expected[:, 1:-1], cos, sin)
    x = fused[:, 1:-1]
    assert kernels.rotary_(x, cos, sin) is x
    close(fused, expected)
    assert torch.equal(fused[:, [0, -1]], expected[:, [0, -1]])  # heads outside the view are as they were


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "num_kv_heads", "head_dim", "block_size"),
    [(1, 1, 1, 64, 16), (3, 14, 2, 64, 16), (2, 4, 4, 80, 32), (2, 16, 1, 96, 64), (2, 32, 8, 128, 16)],
)
def test_rotary_kv_write(
    dtype: torch.dtype, num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int
) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    num_rotated = num_heads + num_kv_heads
    fused = torch.randn(num_tokens, num_rotated + num_kv_heads, head_dim, generator=generator).to(dtype)
    expected = fused.clone()
    slots = torch.randperm(3 * block_size, generator=generator)[:num_tokens]
    slots[num_tokens // 2] = -1 if num_tokens > 1 else slots[0]
    cos, sin = angles(num_tokens, head_dim, dtype)
    shape = (3, num_kv_heads, block_size, head_dim)
    caches = [torch.full(shape, torch.nan, dtype=dtype).transpose(1, 2) for _ in range(4)]
    caches[1] = caches[1].contiguous()
    kernels.rotary_kv_write(fused[:, :num_rotated], fused[:, num_rotated:], cos, sin, *caches[:2], slots)
    reference.rotary_kv_write(expected[:, :num_rotated], expected[:, num_rotated:], cos, sin, *caches[2:], slots)
    close(fused, expected)
    assert torch.equal(fused[:, num_heads:], expected[:, num_heads:])  # keys and values stay as they were
    for actual, wanted in zip(caches[:2], caches[2:], strict=True):
        close(actual, wanted)
        assert torch.isfinite(actual).sum() == int((slots >= 0).sum()) * num_kv_heads * head_dim


def test_no_tokens() -> None:
    empty = torch.empty(0, 3, 64)
    cos, sin = angles(0, 64, torch.float32)
    kernels.rotary_(empty, cos, sin)
    cache = torch.full((1, 16, 1, 64), torch.nan)
    kernels.rotary_kv_write(empty, empty[:, :1], cos, sin, cache, cache, torch.empty(0, dtype=torch.int64))
    assert cache.isnan().all()
