"""Linear layers behind one seam: how a weight is stored and multiplied is the method's own business."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

_PACK_ROWS = 32
"""Rows that the packed layout is made for; it serves every other count, at a cost too small to measure."""


class LinearMethod(Protocol):
    """One linear layer, x · weightᵀ + bias. x: (T, in_features), dense. Returns a new tensor, (T, out_features)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearMethod:
    """The fastest method for this weight on its device. weight: (out_features, in_features).

    The caller drops its own reference to `weight`, so that a method which keeps another layout can free it.
    """
    if can_pack(weight):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN has a packed layout for this weight here; the 16-bit types need a CPU that knows them."""
    if weight.device.type != "cpu" or not _has_onednn():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if weight.dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return weight.dtype == torch.float32


def default_dtype(device: torch.device | None = None, stored: str | None = None) -> torch.dtype:
    """The dtype of `--dtype auto`: on the CPU (None), bfloat16 where it is multiplied natively, else float32.

    On a GPU the checkpoint's own, `stored`, where that has 16 bits, else bfloat16; float16 on a GPU without bfloat16.
    """
    if device is not None and device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.float16 if stored == "float16" or not has_bfloat16 else torch.bfloat16
    if not can_pack(torch.empty(0, dtype=torch.bfloat16)):
        return torch.float32
    # NOTE: oneDNN also takes bfloat16 on x86 CPUs without the units, but converts on the way: slower than float32.
    capabilities = torch.cpu.get_capabilities()
    is_x86 = capabilities.get("architecture") == "x86_64"
    is_native = capabilities.get("avx512_bf16", False) or capabilities.get("amx_bf16", False)
    return torch.bfloat16 if is_native or not is_x86 else torch.float32


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


class PlainLinear:
    """The weight as it is."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """A weight in oneDNN's blocked layout, packed once: up to three times as fast as the plain product.

    NOTE: a row's result does not depend on which rows stand beside it, to the last bit, except that oneDNN takes
    another kernel for a single float32 row: such a row is computed twice over. That makes float32 output independent
    of the batch, which the product promises.
    """

    __slots__ = ("_bias", "_double_single_rows", "_multiply", "_packed")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
        self._bias = bias
        self._double_single_rows = weight.dtype == torch.float32
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._double_single_rows and x.shape[0] == 1:
            return self._apply(x.repeat(2, 1))[:1]
        return self._apply(x)

    def _apply(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._multiply(x, self._packed, self._bias, "none", [], "")
        return result
