"""Attention over the paged KV cache, for ragged batches of prefill and decode in one launch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from kernels.arguments import check_dense_rows, check_dtype, check_shape
from kernels.attention_kernel import paged_attention_kernel
from kernels.attention_splits import MAX_SPLITS, MIN_SEGMENT, choose_splits, reduce_splits
from kernels.sizes import next_power_of_2
from kernels.tiles import DECODE_ROWS, INTERPRETER, Tile, attention_tile, device_of, family_of
from kernels.variant import CAPABILITIES, KernelVariant

LOG2_E = 1.4426950408889634
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    num_splits: int | None = None,
    out: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Causal attention of a flat batch of B sequences over their cached keys, aligned to the last key.

    q: (T, num_heads, head_dim), float32, float16 or bfloat16; num_heads a multiple of num_kv_heads.
    k_cache, v_cache: (num_blocks, block_size, num_kv_heads, head_dim) of q's dtype, with equal strides; block_size a
    power of two. The keys and values of this step's tokens are written before.
    query_starts: int32 (B + 1), offsets of the sequences in T; rows from query_starts[B] on are left as they are.
    seq_lens: int32 (B), keys of a sequence, this step's included. block_tables: int32 (B, M).
    max_query_len, max_seq_len: upper bounds on the queries and keys of a sequence.
    scale: positive; scores are q·k times it. sliding_window: a token sees the last so many positions, itself included.
    soft_cap: scores become soft_cap * tanh(score / soft_cap).
    num_splits: segments that a sequence's keys are cut into, each a program of its own; None chooses.
    out: (T, num_heads, head_dim), else a new tensor. tile: None takes the table's.

    Every tensor's last dimension is dense. A row that sees no key is 0. Slots that no row sees are not read.
    All decisions depend on integers and shapes: no device is waited for, and a CUDA graph can hold the call.
    Raises ValueError for what the kernel cannot do.
    """
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads
    if group * num_kv_heads != num_heads:
        raise ValueError(f"{num_heads} query heads for {num_kv_heads} KV heads: pass as many for each of these")
    check_shape((*k_cache.shape[:3], head_dim), k_cache=k_cache, v_cache=v_cache)
    check_dtype(q.dtype, k_cache=k_cache, v_cache=v_cache)
    check_dtype(torch.int32, query_starts=query_starts, seq_lens=seq_lens, block_tables=block_tables)
    check_dense_rows(q=q, k_cache=k_cache, v_cache=v_cache, block_tables=block_tables)
    if k_cache.stride() != v_cache.stride():
        raise ValueError("k_cache and v_cache must have equal strides: allocate both in the same way")
    if block_size & (block_size - 1):
        raise ValueError(f"block_size {block_size} is not supported: choose a power of two")
    if scale <= 0:
        raise ValueError(f"scale must be positive, not {scale}")
    if out is None:
        out = q.new_empty(num_tokens, num_heads, head_dim)
    check_shape(q.shape, out=out)
    check_dense_rows(out=out)
    num_seqs = seq_lens.shape[0]
    if num_tokens == 0 or num_seqs == 0:
        return out

    device = device_of(q.device)
    decode = max_query_len * group <= DECODE_ROWS or max_query_len == 1
    if tile is None:
        tile = attention_tile(device.family, head_dim, q.element_size(), decode)
    constants = _constants(
        tile,
        q.dtype,
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        decode=decode,
        has_window=sliding_window is not None,
        has_soft_cap=soft_cap is not None,
        interpreted=device is INTERPRETER,
    )
    block_q = constants["BLOCK_M"] // group
    num_query_blocks = num_seqs if decode else num_tokens // block_q + num_seqs
    num_programs = num_query_blocks * num_kv_heads
    if num_splits is None:
        max_keys = max_seq_len if sliding_window is None else min(max_seq_len, sliding_window + max_query_len)
        num_splits = choose_splits(device, tile, num_programs, max_keys)
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits must be from 1 to {MAX_SPLITS}, not {num_splits}")
    partial_out = partial_lse = out
    if num_splits > 1:
        partial_out = q.new_empty(num_tokens, num_heads, num_splits, head_dim, dtype=torch.float32)
        partial_lse = q.new_empty(num_tokens, num_heads, num_splits, dtype=torch.float32)

    paged_attention_kernel[(num_programs * num_splits,)](
        out,
        partial_out,
        partial_lse,
        q,
        k_cache,
        v_cache,
        query_starts,
        seq_lens,
        block_tables,
        num_seqs,
        num_query_blocks,
        num_splits,
        scale * LOG2_E if soft_cap is None else 2 * LOG2_E * scale / soft_cap,
        soft_cap or 0.0,
        sliding_window or 0,
        out.stride(0),
        out.stride(1),
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        block_tables.stride(0),
        SPLIT=num_splits > 1,
        **constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if num_splits > 1:
        reduce_splits(out, partial_out, partial_lse, query_starts, num_seqs, num_splits)
    return out


def _constants(
    tile: Tile,
    dtype: torch.dtype,
    *,
    num_kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    decode: bool,
    has_window: bool,
    has_soft_cap: bool,
    interpreted: bool = False,
) -> dict[str, Any]:
    """What the kernel is compiled for, all but SPLIT, which BLOCK_M helps to choose."""
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, next_power_of_2(head_dim)),
        "BLOCK_SIZE": block_size,
        "BLOCK_M": max(tile.rows, next_power_of_2(group)),
        "BLOCK_N": tile.keys,
        "ONE_BLOCK": decode,
        "MIN_TILES": max(1, MIN_SEGMENT // tile.keys),
        "HAS_WINDOW": has_window,
        "HAS_SOFT_CAP": has_soft_cap,
        "PRECISION": "tf32x3" if dtype == torch.float32 else "ieee",
        # NOTE: Triton's interpreter multiplies the bits of bfloat16 as integers in a dot.
        "UPCAST": dtype == torch.bfloat16 and interpreted,
    }


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """What `paged_attention` launches: plain bfloat16 heads of 128; with full every tile, option and odd shape."""
    for capability in CAPABILITIES:
        for decode, split in product((True, False), (True, False)):
            yield _variant(capability, decode=decode, split=split)
    if not full:
        return
    shapes = (
        ("bf16", 64, 16),
        ("bf16", 80, 16),
        ("bf16", 96, 32),
        ("fp16", 128, 32),
        ("bf16", 128, 64),
        ("bf16", 256, 16),
        ("fp32", 64, 16),
        ("fp32", 80, 32),
        ("fp32", 128, 16),
        ("fp32", 256, 64),
    )
    uses = ((False, 4, False), (False, 7, True), (True, 1, False), (True, 16, True))
    for capability, decode, shape, use in product((89, *CAPABILITIES), (True, False), shapes, uses):
        dtype, head_dim, block_size = shape
        split, group, options = use
        yield _variant(
            capability,
            decode=decode,
            split=split,
            dtype=dtype,
            head_dim=head_dim,
            block_size=block_size,
            group=group,
            options=options,
        )


def _variant(
    capability: int,
    *,
    decode: bool,
    split: bool,
    dtype: str = "bf16",
    head_dim: int = 128,
    block_size: int = 16,
    group: int = 4,
    options: bool = False,
) -> KernelVariant:
    """options: with sliding window and soft cap."""
    torch_dtype = _DTYPES[dtype]
    tile = attention_tile(family_of(*divmod(capability, 10)), head_dim, torch_dtype.itemsize, decode)
    constants = _constants(
        tile,
        torch_dtype,
        num_kv_heads=8,
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        decode=decode,
        has_window=options,
        has_soft_cap=options,
    )
    constants["SPLIT"] = split
    rows = ("out_token_stride", "out_head_stride", "q_token_stride", "q_head_stride")
    strides = (*rows, "cache_block_stride", "cache_slot_stride", "cache_head_stride")
    partial = "*fp32" if split else f"*{dtype}"
    signature = {
        "out": f"*{dtype}",
        "partial_out": partial,
        "partial_lse": partial,
        "q": f"*{dtype}",
        "k_cache": f"*{dtype}",
        "v_cache": f"*{dtype}",
        "query_starts": "*i32",
        "seq_lens": "*i32",
        "block_tables": "*i32",
        "num_seqs": "i32",
        "num_query_blocks": "i32",
        "num_splits": "i32",
        "scale": "fp32",
        "soft_cap": "fp32",
        "window": "i32",
        **dict.fromkeys(strides, "i32"),
        "table_stride": "i32",
        **dict.fromkeys(constants, "constexpr"),
    }
    words = [dtype, f"{8 * group}+8x{head_dim}", f"block_size={block_size}", "decode" if decode else "prefill"]
    words += ["split"] * split + ["window", "soft_cap"] * options
    return KernelVariant(
        name=f"paged_attention[{','.join(words)}]",
        kernel=paged_attention_kernel,
        signature=signature,
        constants=constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        aligned=frozenset(("out", "partial_out", "partial_lse", "q", "k_cache", "v_cache", *strides)),
        spills_allowed=False,
        capabilities=(capability,),
    )
