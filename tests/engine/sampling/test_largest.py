from __future__ import annotations

import pytest
import torch

from engine.sampling.largest import largest_values


@pytest.mark.parametrize("count", [1, 2, 63, 64])
def test_equals_topk_values(count: int) -> None:
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    rows[1] = -torch.inf
    before = rows.clone()
    assert largest_values(rows, count).tolist() == rows.topk(count, dim=-1).values.tolist()
    assert torch.equal(rows, before)


@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 1), (1, 5)])
def test_smallest_shapes_can_be_taken_back_to_torch(rows: int, vocab: int) -> None:
    values = torch.from_numpy(largest_values(torch.arange(rows * vocab).float().view(rows, vocab), 1))
    assert values.squeeze(1).tolist() == [vocab * (row + 1) - 1 for row in range(rows)]
