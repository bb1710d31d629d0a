"""`kernels.silu_mul` against its torch twin."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.silu_mul import silu_mul as reference
from kernels.silu_mul import silu_mul


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "inner"), [(1, 1), (1, 64), (3, 172), (2, 1024), (5, 1025)])
def test_silu_mul(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, num_rows: int, inner: int) -> None:
    gate_up = (torch.randn(num_rows, 2 * inner, generator=torch.Generator().manual_seed(inner)) * 4).to(dtype)
    expected = reference(gate_up)

    def empty(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=dtype, device=device)

    monkeypatch.setattr(torch, "empty", empty)
    actual = silu_mul(gate_up)
    # In bfloat16 two roundings may differ: the interpreter cuts off where devices round.
    rtol = 2**-6 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-6, equal_nan=False)


def test_far_values_neither_overflow_nor_turn_nan() -> None:
    gates = torch.tensor([[-1e4, -120.0, -89.0, 0.0, 89.0, 1e4]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, 89.0, 1e4]])
    torch.testing.assert_close(silu_mul(torch.cat((gates, torch.ones_like(gates)), 1)), expected)


def test_rows_may_be_views() -> None:
    wide = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(silu_mul(wide[:, 7:57]), reference(wide[:, 7:57]))


def test_no_rows() -> None:
    assert silu_mul(torch.empty(0, 24)).shape == (0, 12)
