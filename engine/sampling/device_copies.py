"""Copies between host and device that neither side waits for."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of `array` on the device, of its shape and dtype.

    NOTE: pinned memory of its own for each copy: torch gives it to nobody else before the copy is done.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor.clone()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor).to(device, non_blocking=True)


def download(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory, to be read once the work given to the device so far is done."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
