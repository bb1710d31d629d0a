"""Attention whose keys are cut into segments: how many, and the sum of their partial results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import torch
import triton
import triton.language as tl

from kernels.sizes import next_power_of_2
from kernels.tiles import Device, Tile
from kernels.variant import KernelVariant

MIN_SEGMENT = 128
"""Fewest keys of a segment."""
MAX_SPLITS = 128
CHUNK = 16
"""Segments that the reduction reads at a time."""

START_COST = 4
"""Keys that a program could take, a row of it, while it starts and while it writes its result."""
REDUCE_COST = 128
"""Keys that a program could take while the reduction is launched."""


@triton.jit(do_not_specialize=["num_seqs", "num_splits"], do_not_specialize_on_alignment=["query_starts"])
def reduce_splits_kernel(
    out,
    partial_out,
    partial_lse,
    query_starts,
    num_seqs,
    num_splits,
    out_token_stride,
    out_head_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program: the segments of one head of one token, weighted by their sums of exponentials."""
    row = tl.program_id(0)
    token = (row // NUM_HEADS).to(tl.int64)
    head = row % NUM_HEADS
    if token >= tl.load(query_starts + num_seqs):
        return
    first = row.to(tl.int64) * num_splits
    every = tl.arange(0, MAX_SPLITS)
    every_lse = tl.load(partial_lse + first + every, mask=every < num_splits, other=float("-inf"))
    largest = tl.max(every_lse, 0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(tl.exp2(every_lse - largest), 0)

    offs_d = tl.arange(0, BLOCK_D)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, num_splits, CHUNK):
        splits = start + tl.arange(0, CHUNK)
        lse = tl.load(partial_lse + first + splits, mask=splits < num_splits, other=float("-inf"))
        # NOTE: a segment without keys has written no partial result.
        written = (lse > float("-inf"))[:, None] & (offs_d < HEAD_DIM)[None, :]
        part = tl.load(partial_out + (first + splits)[:, None] * HEAD_DIM + offs_d[None, :], mask=written, other=0.0)
        acc += tl.sum(part * tl.exp2(lse - largest)[:, None], 0)
    acc = acc / tl.where(total == 0.0, 1.0, total)
    offsets = token * out_token_stride + head * out_head_stride + offs_d
    tl.store(out + offsets, acc.to(out.dtype.element_ty), mask=offs_d < HEAD_DIM)


@lru_cache(maxsize=1024)
def choose_splits(device: Device, tile: Tile, num_programs: int, max_keys: int) -> int:
    """Segments to cut the keys into: the fewest whose estimated time is within 5 % of the shortest.

    num_programs: programs without splits. max_keys: most keys that one of them goes through. The time is counted in
    keys: programs run in waves of as many as the device holds, each over its segment and with a fixed cost.
    """
    places = device.num_sms * tile.programs_per_sm
    num_tiles = math.ceil(max_keys / tile.keys)
    times = [
        math.ceil(num_programs * splits / places) * (math.ceil(num_tiles / splits) * tile.keys + START_COST * tile.rows)
        + (REDUCE_COST if splits > 1 else 0)
        for splits in range(1, max(1, min(MAX_SPLITS, max_keys // MIN_SEGMENT)) + 1)
    ]
    return next(splits for splits, time in enumerate(times, 1) if time <= 1.05 * min(times))


def reduce_splits(
    out: torch.Tensor,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    query_starts: torch.Tensor,
    num_seqs: int,
    num_splits: int,
) -> None:
    """Writes to out (T, num_heads, head_dim) what the segments of each row come to together.

    partial_out: float32 (T, num_heads, num_splits, head_dim), each the result over its segment alone.
    partial_lse: float32 (T, num_heads, num_splits), log2 of the segment's sum of exponentials; -inf: no keys, and
    nothing in partial_out. Rows from query_starts[num_seqs] on are left.
    """
    num_tokens, num_heads, head_dim = out.shape
    reduce_splits_kernel[(num_tokens * num_heads,)](
        out,
        partial_out,
        partial_lse,
        query_starts,
        num_seqs,
        num_splits,
        out.stride(0),
        out.stride(1),
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=next_power_of_2(head_dim),
        MAX_SPLITS=MAX_SPLITS,
        CHUNK=CHUNK,
        num_warps=4,
    )


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """bfloat16 heads of 128; with full the other dtypes and sizes of heads."""
    for dtype, head_dim in product(("bf16", "fp16", "fp32"), (64, 80, 128, 256)) if full else (("bf16", 128),):
        yield _variant(dtype, head_dim)


def _variant(dtype: str, head_dim: int) -> KernelVariant:
    constants = {
        "NUM_HEADS": 32,
        "HEAD_DIM": head_dim,
        "BLOCK_D": next_power_of_2(head_dim),
        "MAX_SPLITS": MAX_SPLITS,
        "CHUNK": CHUNK,
    }
    return KernelVariant(
        name=f"reduce_splits[{dtype},{constants['NUM_HEADS']}x{head_dim}]",
        kernel=reduce_splits_kernel,
        signature={
            "out": f"*{dtype}",
            "partial_out": "*fp32",
            "partial_lse": "*fp32",
            "query_starts": "*i32",
            "num_seqs": "i32",
            "num_splits": "i32",
            "out_token_stride": "i32",
            "out_head_stride": "i32",
            **dict.fromkeys(constants, "constexpr"),
        },
        constants=constants,
        aligned=frozenset({"out", "partial_out", "partial_lse", "out_token_stride", "out_head_stride"}),
        spills_allowed=False,
    )
