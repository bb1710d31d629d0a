"""RMS norms against the formula in float64."""

from __future__ import annotations

import pytest
import torch

from engine.layers.norm import HeadNorm, RMSNorm


def formula(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)])
def test_norm(dtype: torch.dtype, tolerance: float) -> None:
    x, weight = torch.randn(5, 48).to(dtype), torch.rand(48).to(dtype)
    for eps in (1e-5, 0.5):
        expected = formula(x, weight, eps)
        torch.testing.assert_close(RMSNorm(weight, eps)(x).double(), expected, atol=tolerance, rtol=tolerance)


def test_add_updates_the_residual() -> None:
    residual, update, weight = torch.randn(3, 8), torch.randn(3, 8), torch.rand(8)
    total = residual + update
    normed = RMSNorm(weight, 1e-5).add(residual, update)
    assert torch.equal(residual, total)
    torch.testing.assert_close(normed.double(), formula(total, weight, 1e-5), atol=1e-6, rtol=1e-6)


def test_zeros_stay_zeros() -> None:
    assert torch.equal(RMSNorm(torch.ones(4), 1e-6)(torch.zeros(2, 4)), torch.zeros(2, 4))


def test_head_norm_has_a_weight_a_head() -> None:
    x, weight = torch.randn(6, 5, 16), torch.rand(5, 16)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    before = strided.clone()
    result = HeadNorm(weight, 1e-6)(strided[:, :5])
    torch.testing.assert_close(result.double(), formula(x, weight, 1e-6), atol=1e-6, rtol=1e-6)
    assert torch.equal(strided, before)
