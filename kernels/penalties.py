"""Presence, frequency and repetition penalties from a persistent table of token counts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.arguments import check_contiguous, check_dense_rows, check_dtype, check_shape
from kernels.row_parameters import SEEN_IN_PROMPT, Column
from kernels.sizes import cdiv
from kernels.variant import KernelVariant

BLOCK = 4096
ROWS = 128
"""Rows a program of `count_tokens`."""

COLUMNS = tl.constexpr(len(Column))
REPETITION = tl.constexpr(Column.REPETITION.value)
FREQUENCY = tl.constexpr(Column.FREQUENCY.value)
PRESENCE = tl.constexpr(Column.PRESENCE.value)
GENERATED = tl.constexpr(SEEN_IN_PROMPT - 1)
"""The bits of an entry that count generated tokens."""


@triton.jit
def _penalties_kernel(
    logits, logits_stride, vocab_size, counts, counts_stride, parameters, row_indices, BLOCK: tl.constexpr
):
    """BLOCK tokens of a row a program."""
    row = tl.program_id(1).to(tl.int64)
    own = tl.load(row_indices + row)
    repetition, frequency, presence, is_wanted = _load_penalties(parameters + own * COLUMNS)
    if is_wanted:
        token_ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        seen = tl.load(counts + own * counts_stride + token_ids, token_ids < vocab_size, other=0)
        places = logits + row * logits_stride + token_ids
        values = tl.load(places, seen != 0, other=0.0)
        values = tl.where(values > 0.0, tl.div_rn(values, repetition), values * repetition)
        generated = (seen & GENERATED).to(tl.float32)
        values = values - generated * frequency - tl.where(generated > 0.0, presence, 0.0)
        tl.store(places, values, seen != 0)


@triton.jit(do_not_specialize=["num_rows"])
def _count_kernel(counts, counts_stride, parameters, row_indices, token_ids, num_rows, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    own = tl.load(row_indices + rows, is_row, other=0)
    repetition = tl.load(parameters + own * COLUMNS + REPETITION, is_row, other=1.0)
    frequency = tl.load(parameters + own * COLUMNS + FREQUENCY, is_row, other=0.0)
    presence = tl.load(parameters + own * COLUMNS + PRESENCE, is_row, other=0.0)
    is_wanted = (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)
    entries = counts + own * counts_stride + tl.load(token_ids + rows, is_row, other=0)
    tl.store(entries, tl.load(entries, is_wanted, other=0) + 1, is_wanted)


@triton.jit
def _load_penalties(own):
    """(repetition, frequency, presence, whether any of them is on)."""
    repetition = tl.load(own + REPETITION).to(tl.float32)
    frequency = tl.load(own + FREQUENCY).to(tl.float32)
    presence = tl.load(own + PRESENCE).to(tl.float32)
    return repetition, frequency, presence, (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)


def apply_penalties_(
    logits: torch.Tensor, counts: torch.Tensor, parameters: torch.Tensor, row_indices: torch.Tensor
) -> None:
    """Lowers the logits of tokens seen before, in place, in rows whose parameters ask for it.

    logits: float32 (R, vocab), rows of any stride. counts: int32 (rows, vocab): how often a token was generated, plus
    SEEN_IN_PROMPT where the prompt holds it. parameters: float64 (rows, len(Column)). row_indices: int64 (R), each
    row's place in both.

    Repetition first, over prompt and generated tokens: a positive logit is divided by the penalty, a negative one
    multiplied (CTRL, arXiv:1909.05858, section 4.1, in the form for logits of either sign). Then
    `logit −= count * frequency + (count > 0) * presence` over generated tokens (OpenAI API reference).
    Raises ValueError for other shapes, dtypes and strides.
    """
    num_rows, vocab_size = logits.shape
    _check(counts, parameters, row_indices, num_rows)
    check_dtype(torch.float32, logits=logits)
    check_dense_rows(logits=logits)
    check_shape((len(counts), vocab_size), counts=counts)
    if num_rows:
        _penalties_kernel[(cdiv(vocab_size, BLOCK), num_rows)](
            logits,
            logits.stride(0),
            vocab_size,
            counts,
            counts.stride(0),
            parameters,
            row_indices,
            BLOCK=BLOCK,
            num_warps=8,
        )


def count_tokens_(
    counts: torch.Tensor, parameters: torch.Tensor, row_indices: torch.Tensor, token_ids: torch.Tensor
) -> None:
    """Adds one generated token a row to the table, in rows whose parameters ask for penalties.

    token_ids: int64 (R). The rest as in `apply_penalties_`; no row twice.
    """
    num_rows = len(row_indices)
    _check(counts, parameters, row_indices, num_rows)
    check_shape((num_rows,), token_ids=token_ids)
    check_dtype(torch.int64, token_ids=token_ids)
    check_contiguous(token_ids=token_ids)
    if num_rows:
        _count_kernel[(cdiv(num_rows, ROWS),)](
            counts, counts.stride(0), parameters, row_indices, token_ids, num_rows, ROWS=ROWS, num_warps=4
        )


def _check(counts: torch.Tensor, parameters: torch.Tensor, row_indices: torch.Tensor, num_rows: int) -> None:
    check_dtype(torch.int32, counts=counts)
    check_dense_rows(counts=counts)
    check_dtype(torch.float64, parameters=parameters)
    check_shape((num_rows,), row_indices=row_indices)
    check_dtype(torch.int64, row_indices=row_indices)
    check_contiguous(parameters=parameters, row_indices=row_indices)


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """One form serves every vocabulary; `full` adds vocabularies that are no multiple of 16."""
    types = {
        "logits": "*fp32",
        "counts": "*i32",
        "parameters": "*fp64",
        **dict.fromkeys(("row_indices", "token_ids"), "*i64"),
        **dict.fromkeys(("logits_stride", "vocab_size", "counts_stride", "num_rows"), "i32"),
        **dict.fromkeys(("BLOCK", "ROWS"), "constexpr"),
    }
    kernels = (
        ("apply_penalties_", _penalties_kernel, {"BLOCK": BLOCK}, 8),
        ("count_tokens_", _count_kernel, {"ROWS": ROWS}, 4),
    )
    for name, kernel, constants, num_warps in kernels:
        signature = {argument: types[argument] for argument in kernel.arg_names}
        pointers = {argument for argument, kind in signature.items() if kind.startswith("*")}
        sizes = {"logits_stride", "vocab_size", "counts_stride"} & signature.keys()
        for is_aligned in (True, False) if full else (True,):
            yield KernelVariant(
                name=name if is_aligned else f"{name}[unaligned]",
                kernel=kernel,
                signature=signature,
                constants=constants,
                num_warps=num_warps,
                aligned=frozenset(pointers | sizes if is_aligned else pointers),
            )
