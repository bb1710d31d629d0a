"""The largest values of each row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def largest_values(rows: torch.Tensor, count: int) -> npt.NDArray[np.float32]:
    """The `count` largest values of each row, in descending order. rows: float32 (rows, vocab), on any device.

    NOTE: values without ids. numpy's vectorised partition and sort of bare floats are 4 to 40 times faster than
    torch.topk and torch.sort on the CPU, which carry ids and leave the choice among equal values open. Who needs ids
    looks up those at or above the last value, and so decides about ties himself.
    """
    if rows.device.type != "cpu":
        return rows.topk(count, dim=-1).values.cpu().numpy()
    array = rows.numpy()
    border = array.shape[1] - count
    if border > 0:
        array = np.partition(array, border, axis=1)[:, border:]
    return np.sort(array, axis=1)[:, ::-1].copy()
