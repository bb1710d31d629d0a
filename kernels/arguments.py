"""What the wrappers of kernels ask of their tensors. All raise ValueError, with what to do."""

from __future__ import annotations

import torch


def check_shape(shape: tuple[int, ...], **tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}: pass one of {tuple(shape)}")


def check_dtype(dtype: torch.dtype, **tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype}: pass it as {dtype}")


def check_dense_rows(**tensors: torch.Tensor) -> None:
    """The last dimension must be dense; the others may have any stride."""
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} has elements {tensor.stride(-1)} apart: make its last dimension dense")


def check_contiguous(**tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is not dense: pass {name}.contiguous()")
