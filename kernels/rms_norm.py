"""Root-mean-square norms (arXiv:1910.07467), with the residual add fused, and over the heads of queries and keys."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.arguments import check_contiguous, check_dense_rows, check_shape
from kernels.head_tile import head_tile
from kernels.sizes import cdiv, next_power_of_2
from kernels.variant import KernelVariant

MAX_BLOCK = 8192
"""Columns that one program keeps in registers; longer rows are read twice."""
TILE = 1024
"""Elements of a program that short rows share."""
ELEMENTS_A_WARP = 512


@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm_kernel(
    x,
    update,
    weight,
    out,
    x_stride,
    update_stride,
    num_rows,
    num_columns,
    eps,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """ROWS rows a program. ADDS: x += update first, stored in x's dtype. IS_WHOLE: one block holds a row."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = (rows < num_rows)[:, None]
    x_rows = x + rows[:, None] * x_stride
    update_rows = update + rows[:, None] * update_stride
    out_rows = out + rows[:, None] * num_columns
    columns = tl.arange(0, BLOCK)[None, :]
    if IS_WHOLE:
        mask = in_rows & (columns < num_columns)
        values = tl.load(x_rows + columns, mask, other=0.0)
        if ADDS:
            values = _rounded_sum(values, tl.load(update_rows + columns, mask, other=0.0))
            tl.store(x_rows + columns, values, mask)
        values = values.to(tl.float32)
        scales = tl.rsqrt(tl.sum(values * values, axis=1) / num_columns + eps)[:, None]
        weights = tl.load(weight + columns, columns < num_columns, other=0.0).to(tl.float32)
        tl.store(out_rows + columns, values * scales * weights, mask)
    else:
        squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        for start in range(0, num_columns, BLOCK):
            places = start + columns
            mask = in_rows & (places < num_columns)
            values = tl.load(x_rows + places, mask, other=0.0)
            if ADDS:
                values = _rounded_sum(values, tl.load(update_rows + places, mask, other=0.0))
            values = values.to(tl.float32)
            squares += values * values
        scales = tl.rsqrt(tl.sum(squares, axis=1) / num_columns + eps)[:, None]
        # NOTE: the sum is made again, and stored only now, so that no thread reads what another one has written.
        for start in range(0, num_columns, BLOCK):
            places = start + columns
            mask = in_rows & (places < num_columns)
            values = tl.load(x_rows + places, mask, other=0.0)
            if ADDS:
                values = _rounded_sum(values, tl.load(update_rows + places, mask, other=0.0))
                tl.store(x_rows + places, values, mask)
            weights = tl.load(weight + places, places < num_columns, other=0.0).to(tl.float32)
            tl.store(out_rows + places, values.to(tl.float32) * scales * weights, mask)


@triton.jit
def _rounded_sum(values, updates):
    return (values.to(tl.float32) + updates.to(tl.float32)).to(values.dtype)


@triton.jit
def _head_rms_norm_kernel(
    x,
    weight,
    out,
    x_token_stride,
    x_head_stride,
    num_heads,
    eps,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
):
    """HEADS heads of one token a program."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    lanes = tl.arange(0, LANES)[None, :]
    mask = (heads < num_heads) & (lanes < HEAD_DIM)
    dense = heads * HEAD_DIM + lanes
    values = tl.load(x + token * x_token_stride + heads.to(tl.int64) * x_head_stride + lanes, mask, other=0.0)
    wide = values.to(tl.float32)
    scales = tl.rsqrt(tl.sum(wide * wide, axis=1) / HEAD_DIM + eps)[:, None]
    # NOTE: rounded before the weight, as torch does where the weight is a product of its own.
    normed = (wide * scales).to(values.dtype).to(tl.float32)
    weights = tl.load(weight + dense, mask, other=0.0).to(tl.float32)
    tl.store(out + token * num_heads * HEAD_DIM + dense, normed * weights, mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight, in float32, rounded once. Returns a new dense tensor of x's dtype.

    x: (T, size), rows of any stride. weight: (size). Raises ValueError for other shapes and strides, as all here do.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, x, weight, out, eps, adds=False)
    return out


def add_rms_norm_(residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds `update` to `residual` in place, rounded to its dtype, and returns the norm of the rounded sum.

    residual, update: (T, size), rows of any stride. weight: (size). Returns a new dense tensor.
    """
    out = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    _launch(residual, update, weight, out, eps, adds=True)
    return out


def head_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm over each head's own dimensions, rounded, times a weight a head. Returns a new dense tensor.

    x: (T, heads, head_dim), tokens and heads of any stride. weight: (heads, head_dim).
    """
    num_tokens, num_heads, head_dim = x.shape
    check_shape((num_heads, head_dim), weight=weight)
    check_dense_rows(x=x)
    check_contiguous(weight=weight)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    constants = _head_constants(num_heads, head_dim)
    grid = (num_tokens, cdiv(num_heads, constants["HEADS"]))
    if num_tokens:
        _head_rms_norm_kernel[grid](x, weight, out, x.stride(0), x.stride(1), num_heads, eps, **constants, num_warps=2)
    return out


def _launch(
    x: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float, *, adds: bool
) -> None:
    num_rows, num_columns = x.shape
    check_shape((num_rows, num_columns), update=update)
    check_shape((num_columns,), weight=weight)
    check_dense_rows(rows=x, update=update, weight=weight)
    if not num_rows:
        return
    constants = _constants(num_columns)
    _rms_norm_kernel[(cdiv(num_rows, constants["ROWS"]),)](
        x,
        update,
        weight,
        out,
        x.stride(0),
        update.stride(0),
        num_rows,
        num_columns,
        eps,
        ADDS=adds,
        **constants,
        num_warps=_num_warps(constants),
    )


def _constants(num_columns: int) -> dict[str, int | bool]:
    block = min(next_power_of_2(num_columns), MAX_BLOCK)
    return {"ROWS": max(1, TILE // block), "BLOCK": block, "IS_WHOLE": num_columns <= block}


def _num_warps(constants: dict[str, int | bool]) -> int:
    return min(16, max(1, constants["ROWS"] * constants["BLOCK"] // ELEMENTS_A_WARP))


def _head_constants(num_heads: int, head_dim: int) -> dict[str, int]:
    return {"HEAD_DIM": head_dim, **head_tile(num_heads, head_dim)}


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """The hidden sizes of small and large Llamas and Qwens in bfloat16; with `full` more sizes and dtypes."""
    for dtype in ("bf16", "fp16", "fp32") if full else ("bf16",):
        for num_columns in (64, 896, 2048, 4096, 8192, 16384) if full else (896, 4096):
            for adds in (False, True):
                constants = _constants(num_columns)
                yield KernelVariant(
                    name=f"{'add_rms_norm_' if adds else 'rms_norm'}[{dtype},{num_columns}]",
                    kernel=_rms_norm_kernel,
                    signature={
                        **dict.fromkeys(("x", "update", "weight", "out"), f"*{dtype}"),
                        **dict.fromkeys(("x_stride", "update_stride", "num_rows", "num_columns"), "i32"),
                        "eps": "fp32",
                        **dict.fromkeys(("ADDS", *constants), "constexpr"),
                    },
                    constants={"ADDS": adds, **constants},
                    num_warps=_num_warps(constants),
                    aligned=frozenset(("x", "update", "weight", "out", "x_stride", "update_stride", "num_columns")),
                )
        for num_heads, head_dim in ((1, 64), (12, 80), (24, 96), (40, 128), (10, 256)) if full else ((40, 128),):
            head_constants = _head_constants(num_heads, head_dim)
            yield KernelVariant(
                name=f"head_rms_norm[{dtype},{num_heads}x{head_dim}]",
                kernel=_head_rms_norm_kernel,
                signature={
                    **dict.fromkeys(("x", "weight", "out"), f"*{dtype}"),
                    **dict.fromkeys(("x_token_stride", "x_head_stride", "num_heads"), "i32"),
                    "eps": "fp32",
                    **dict.fromkeys(head_constants, "constexpr"),
                },
                constants=head_constants,
                num_warps=2,
                aligned=frozenset(("x", "weight", "out", "x_token_stride", "x_head_stride")),
            )
