"""Token embedding."""

from __future__ import annotations

import torch

from engine.layers.embedding import Embedding


def test_rows_by_id_are_copies() -> None:
    table = torch.randn(9, 4)
    before = table.clone()
    rows = Embedding(table)(torch.tensor([8, 0, 8]))
    assert torch.equal(rows, before[[8, 0, 8]])
    rows.zero_()
    assert torch.equal(table, before)
