"""`kernels.rms_norm` against its torch twin."""

from __future__ import annotations

import pytest
import torch

from kernels import rms_norm as kernels
from kernels.reference import rms_norm as reference

DTYPES = (torch.float32, torch.bfloat16)
EPS = 1e-5


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """In float32 the order of a sum. In bfloat16 two roundings: the interpreter cuts off where devices round."""
    rtol = 2**-6 if expected.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-6, equal_nan=False)


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """New outputs start as NaN, so that an element left out shows."""

    def empty(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=dtype, device=device)

    monkeypatch.setattr(torch, "empty", empty)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 64), (3, 1), (5, 65), (17, 64), (2, 896), (3, 2048), (2, 8193)])
def test_rms_norm(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, num_rows: int, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x = (torch.randn(num_rows, size, generator=generator) * 3).to(dtype)
    weight = torch.randn(size, generator=generator).to(dtype)
    expected = reference.rms_norm(x.clone(), weight, EPS)
    poison(monkeypatch)
    before = x.clone()
    close(kernels.rms_norm(x, weight, EPS), expected)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 64), (5, 65), (17, 64), (2, 896), (2, 8193)])
def test_the_sum_stays_rounded_in_the_residual(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, num_rows: int, size: int
) -> None:
    generator = torch.Generator().manual_seed(size)
    residual, update = (torch.randn(num_rows, size, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(size, generator=generator).to(dtype)
    expected_residual = residual.clone()
    expected = reference.add_rms_norm_(expected_residual, update, weight, EPS)
    poison(monkeypatch)
    close(kernels.add_rms_norm_(residual, update, weight, EPS), expected)
    torch.testing.assert_close(residual, expected_residual, rtol=2**-7 if dtype == torch.bfloat16 else 0, atol=0)


def test_rows_may_be_views() -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(7, 300, generator=generator)
    before = wide.clone()
    residual, update, weight = wide[:, 10:110], wide[:, 150:250], torch.rand(100, generator=generator)
    expected = reference.add_rms_norm_(before[:, 10:110], before[:, 150:250], weight, EPS)
    close(kernels.add_rms_norm_(residual, update, weight, EPS), expected)
    assert torch.equal(wide, before)  # the columns outside the view are as they were


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 64), (3, 5, 80), (2, 17, 96), (2, 40, 128), (1, 6, 256)])
def test_head_rms_norm(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    num_tokens, num_heads, head_dim = shape
    generator = torch.Generator().manual_seed(head_dim)
    fused = torch.randn(num_tokens, num_heads + 3, head_dim, generator=generator).to(dtype)
    weight = torch.randn(num_heads, head_dim, generator=generator).to(dtype)
    x = fused[:, 1 : 1 + num_heads]
    expected = reference.head_rms_norm(x, weight, EPS)
    poison(monkeypatch)
    actual = kernels.head_rms_norm(x, weight, EPS)
    close(actual, expected)
    assert actual.is_contiguous()


def test_no_rows() -> None:
    weight = torch.ones(64)
    assert kernels.rms_norm(torch.empty(0, 64), weight, EPS).shape == (0, 64)
    assert kernels.add_rms_norm_(torch.empty(0, 64), torch.empty(0, 64), weight, EPS).shape == (0, 64)
    assert kernels.head_rms_norm(torch.empty(0, 1, 64), weight.view(1, 64), EPS).shape == (0, 1, 64)


@pytest.mark.parametrize("size", [48, 8193])
def test_a_row_of_zeros_is_zero(size: int) -> None:
    zeros, weight = torch.zeros(2, size), torch.ones(size)
    assert torch.equal(kernels.rms_norm(zeros, weight, EPS), zeros)
    assert torch.equal(kernels.add_rms_norm_(zeros.clone(), zeros, weight, EPS), zeros)
    heads = zeros.view(2, 1, size)
    assert torch.equal(kernels.head_rms_norm(heads, weight.view(1, size), EPS), heads)
