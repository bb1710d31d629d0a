"""Offsets of 2³¹ elements and more: KV caches, and the activations of long prefills, are that large."""

from __future__ import annotations

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.rms_norm import add_rms_norm_, head_rms_norm, rms_norm
from kernels.rotary import rotary_, rotary_kv_write
from kernels.silu_mul import silu_mul

STRIDE = 2**30
"""Fits 32 bits, as Triton then passes it; twice as much does not."""
ROWS, TILE = 3, 64


@pytest.fixture
def far() -> torch.Tensor:
    """(3, 64): rows 2³⁰ elements apart.

    NOTE: as much lies before the first row as after it, so that an offset cut to 32 bits still hits memory of the test.
    The system gives memory only to the pages that are written.
    """
    try:
        storage = torch.empty(4 * STRIDE + TILE, dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip("this machine has no 8 GiB of addresses to give")
    rows = storage.as_strided((ROWS, TILE), (STRIDE, 1), 2 * STRIDE)
    rows.copy_(torch.randn(ROWS, TILE, generator=torch.Generator().manual_seed(0)))
    return rows


def test_norms(far: torch.Tensor) -> None:
    near, weight = far.clone(), torch.ones(TILE, dtype=torch.bfloat16)
    assert torch.equal(rms_norm(far, weight, 1e-5), rms_norm(near, weight, 1e-5))
    heads = (ROWS, 1, TILE)
    expected = head_rms_norm(near.view(heads), weight.view(1, TILE), 1e-5)
    assert torch.equal(head_rms_norm(far.unsqueeze(1), weight.view(1, TILE), 1e-5), expected)
    update = near.clone()
    assert torch.equal(add_rms_norm_(far, update, weight, 1e-5), add_rms_norm_(near, update, weight, 1e-5))
    assert torch.equal(far, near)


def test_activation(far: torch.Tensor) -> None:
    assert torch.equal(silu_mul(far), silu_mul(far.clone()))


def test_rotary(far: torch.Tensor) -> None:
    near = far.clone()
    cos, sin = torch.rand(2, ROWS, 1, TILE, generator=torch.Generator().manual_seed(1)).bfloat16()
    rotary_(far.unsqueeze(1), cos, sin)
    rotary_(near.unsqueeze(1), cos, sin)
    assert torch.equal(far, near)


def test_writes_to_a_far_block(far: torch.Tensor) -> None:
    cache = far.view(ROWS, 1, 1, TILE)  # blocks of one slot
    values = torch.randn(1, 2, TILE, generator=torch.Generator().manual_seed(2)).bfloat16()
    slots = torch.tensor([2])
    first = far[:2].clone()
    kv_write(values[:, :1], values[:, :1], cache, cache, slots)
    assert torch.equal(far[2], values[0, 0])
    cos, sin = torch.ones(1, 1, TILE).bfloat16(), torch.zeros(1, 1, TILE).bfloat16()
    rotary_kv_write(values, values[:, 1:], cos, sin, cache, cache, slots)
    assert torch.equal(far[2], values[0, 1])
    assert torch.equal(far[:2], first)
