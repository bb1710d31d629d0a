"""Rows of sampling parameters, as the kernels take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kernels.row_parameters import Column

GREEDY: Mapping[Column, float] = {}
TEMPERATURE = {Column.TEMPERATURE: 0.8}
TOP_K_TOP_P = {Column.TEMPERATURE: 0.8, Column.TOP_K: 50, Column.TOP_P: 0.95}
TOP_P = {Column.TEMPERATURE: 1.0, Column.TOP_P: 0.9}
MIN_P = {Column.TEMPERATURE: 1.2, Column.MIN_P: 0.05}
PENALTIES = {Column.REPETITION: 1.2, Column.FREQUENCY: 0.3, Column.PRESENCE: 0.5}


def parameter_table(rows: Sequence[Mapping[Column, float]]) -> torch.Tensor:
    """float64 (rows, len(Column)), on the CPU; what a row does not name is off. Seeds differ."""
    table = torch.zeros(len(rows), len(Column), dtype=torch.float64)
    table[:, Column.TOP_P] = 1.0
    table[:, Column.REPETITION] = 1.0
    table[:, Column.SEED_LOW] = torch.arange(len(rows)) * 7919.0
    for i, row in enumerate(rows):
        for column, value in row.items():
            table[i, column] = value
    return table
