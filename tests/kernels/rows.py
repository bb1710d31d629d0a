"""Rows of sampling parameters for the tests of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.row_parameters import Column

Row = dict[Column, float]

OFF: Row = {Column.TEMPERATURE: 1.0, Column.TOP_P: 1.0, Column.REPETITION: 1.0}


def make_table(rows: Sequence[Row], seed: int = 5) -> torch.Tensor:
    """float64 (rows, len(Column)); what a row leaves out is off. Row i has the seed `seed` + i unless it sets one."""
    table = torch.zeros(len(rows), len(Column), dtype=torch.float64)
    for i, row in enumerate(rows):
        for column, value in {**OFF, Column.SEED_LOW: seed + i, **row}.items():
            table[i, column] = value
    return table
