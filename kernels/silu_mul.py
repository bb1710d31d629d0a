"""The gated activation of the MLP, SiLU(gate) · up (arXiv:2002.05202)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.arguments import check_dense_rows
from kernels.sizes import cdiv
from kernels.variant import KernelVariant

BLOCK = 1024


@triton.jit
def _silu_mul_kernel(gate_up, out, gate_up_stride, inner, BLOCK: tl.constexpr):
    """BLOCK columns of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < inner
    gates = tl.load(gate_up + row * gate_up_stride + columns, mask, other=0.0)
    ups = tl.load(gate_up + row * gate_up_stride + inner + columns, mask, other=0.0)
    wide = gates.to(tl.float32)
    # NOTE: rounded before the product, as torch does where the activation is an operation of its own.
    decayed = tl.exp(-tl.abs(wide))  # never overflows
    activated = (wide * tl.where(wide < 0, decayed, 1.0) / (1.0 + decayed)).to(gates.dtype).to(tl.float32)
    tl.store(out + row * inner + columns, activated * ups.to(tl.float32), mask)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU(gate) · up, each rounded to the dtype. gate_up: (T, 2 · inner), the gate first, rows of any stride.

    Returns a new dense tensor, (T, inner). Raises ValueError for other shapes and strides.
    """
    num_rows, width = gate_up.shape
    if width % 2:
        raise ValueError(f"gate_up has {width} columns, which are no two halves: pass the gate and as many behind it")
    check_dense_rows(gate_up=gate_up)
    inner = width // 2
    out = torch.empty((num_rows, inner), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        grid = (num_rows, cdiv(inner, BLOCK))
        _silu_mul_kernel[grid](gate_up, out, gate_up.stride(0), inner, BLOCK=BLOCK, num_warps=4)
    return out


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """bfloat16; with `full` every dtype, and widths that are no multiple of 16 elements."""
    for dtype in ("bf16", "fp16", "fp32") if full else ("bf16",):
        for is_aligned in (True, False) if full else (True,):
            yield KernelVariant(
                name=f"silu_mul[{dtype}{'' if is_aligned else ',unaligned'}]",
                kernel=_silu_mul_kernel,
                signature={
                    "gate_up": f"*{dtype}",
                    "out": f"*{dtype}",
                    "gate_up_stride": "i32",
                    "inner": "i32",
                    "BLOCK": "constexpr",
                },
                constants={"BLOCK": BLOCK},
                aligned=frozenset(("gate_up", "out", "gate_up_stride", "inner") if is_aligned else ("gate_up", "out")),
            )
