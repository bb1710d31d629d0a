"""Attention over the paged KV cache, for ragged batches of prefill and decode in one launch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch
import triton
import triton.language as tl

from kernels.tiles import DECODE_ROWS, INTERPRETER, Device, Tile, attention_tile, device_of, family_of
from kernels.variant import CAPABILITIES, KernelVariant

LOG2_E = 1.4426950408889634
MIN_SEGMENT = 128
"""Fewest keys of a segment: below, its partial result costs more than the split gains."""
MAX_SPLITS = 128
MAX_WAVES = 4
"""Programs beyond so many for each place are not split: their last wave costs little."""
REDUCE_CHUNK = 16


@triton.jit
def _load_blocks(table, tile, end_key, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Cache blocks of a tile's keys: one for all where the tile lies within a block, else one a key."""
    keys = tile * BLOCK_N
    if BLOCK_N > BLOCK_SIZE:
        keys += tl.arange(0, BLOCK_N)
    return tl.load(table + keys // BLOCK_SIZE, mask=keys < end_key, other=0)


@triton.jit
def _attend(
    acc,
    row_max,
    row_sum,
    q,
    k_cache,
    v_cache,
    table,
    stride_block,
    stride_slot,
    positions,
    first_tile,
    last_tile,
    first_key,
    end_key,
    scale,
    soft_cap,
    window,
    MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVICT: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One stretch of the online softmax (Milakov and Gimelshein 2018), over tiles [first_tile, last_tile) of keys.

    MASKED: some row does not see some key of these tiles. Keys outside [first_key, end_key) are not loaded.
    """
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    # NOTE: the block ids are loaded a turn ahead, so that the addresses of a tile never wait for them.
    blocks = _load_blocks(table, first_tile, end_key, BLOCK_SIZE, BLOCK_N)
    for tile in range(first_tile, last_tile):
        keys = tile * BLOCK_N + offs_n
        offsets = blocks.to(tl.int64) * stride_block + (keys % BLOCK_SIZE) * stride_slot
        blocks = _load_blocks(table, tile + 1, end_key, BLOCK_SIZE, BLOCK_N)
        offsets = offsets[:, None] + offs_d[None, :]
        # NOTE: a slot that was never written may hold NaN, and 0 times NaN is NaN: it must not be loaded at all.
        if MASKED:
            written = keys < end_key
            if HAS_WINDOW:
                written &= keys >= first_key
            loaded = written[:, None]
            if HEAD_DIM < BLOCK_D:
                loaded = loaded & (offs_d < HEAD_DIM)[None, :]
            k = tl.load(k_cache + offsets, mask=loaded, other=0.0, eviction_policy=EVICT)
            v = tl.load(v_cache + offsets, mask=loaded, other=0.0, eviction_policy=EVICT)
        elif HEAD_DIM == BLOCK_D:
            k = tl.load(k_cache + offsets, eviction_policy=EVICT)
            v = tl.load(v_cache + offsets, eviction_policy=EVICT)
        else:
            k = tl.load(k_cache + offsets, mask=(offs_d < HEAD_DIM)[None, :], other=0.0, eviction_policy=EVICT)
            v = tl.load(v_cache + offsets, mask=(offs_d < HEAD_DIM)[None, :], other=0.0, eviction_policy=EVICT)

        if UPCAST:
            k = k.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if HAS_SOFT_CAP:
            # tanh(x) = sign(x) (1 - e) / (1 + e) with e = exp(-2 |x|), which cannot overflow.
            power = tl.exp2(-tl.abs(scores) * scale)
            scores = tl.where(scores < 0.0, -soft_cap, soft_cap) * (1.0 - power) / (1.0 + power)
            factor = 1.4426950408889634
        else:
            factor = scale
        if MASKED:
            seen = keys[None, :] <= positions[:, None]
            if HAS_WINDOW:
                seen &= keys[None, :] > positions[:, None] - window
            scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        shift = new_max
        if MASKED:
            # NOTE: a row that has seen no key yet has the maximum -inf, and -inf - -inf is NaN.
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(scores * factor - shift[:, None])
        decay = tl.exp2(row_max - shift)
        row_sum = row_sum * decay + tl.sum(weights, 1)
        weights = weights.to(v.dtype)
        if UPCAST:
            weights = weights.to(tl.float32)
            v = v.to(tl.float32)
        acc = tl.dot(weights, v, acc * decay[:, None], input_precision=PRECISION)
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit(
    do_not_specialize=["num_seqs", "num_query_blocks", "num_splits", "stride_table", "window"],
    do_not_specialize_on_alignment=["query_starts", "seq_lens", "block_tables"],
)
def paged_attention_kernel(
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
    scale,
    soft_cap,
    window,
    stride_out_token,
    stride_out_head,
    stride_q_token,
    stride_q_head,
    stride_block,
    stride_slot,
    stride_kv_head,
    stride_table,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    MIN_TILES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One program: a block of query tokens of a sequence, the query heads of one KV head, one segment of the keys.

    ONE_BLOCK: every sequence has at most one block of queries. scale: what scores are multiplied with before exp2
    (or before the soft cap's exp2), log2(e) included.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    program = tl.program_id(0)
    kv_head = program % NUM_KV_HEADS
    program = program // NUM_KV_HEADS
    segment = 0
    if SPLIT:
        segment = program % num_splits
        program = program // num_splits

    if ONE_BLOCK:
        seq = program
        query_start = tl.load(query_starts + seq)
        first_query = 0
    else:
        # NOTE: sequence s owns the blocks from query_starts[s] // BLOCK_Q + s on, which leaves each enough. The last
        # blocks go first: they have the most keys, and short programs fill the gaps at the end.
        query_block = num_query_blocks - 1 - program
        low = 0
        high = num_seqs
        while high - low > 1:
            middle = (low + high) // 2
            if tl.load(query_starts + middle) // BLOCK_Q + middle <= query_block:
                low = middle
            else:
                high = middle
        seq = low
        query_start = tl.load(query_starts + seq)
        first_query = (query_block - query_start // BLOCK_Q - seq) * BLOCK_Q
    num_queries = tl.load(query_starts + seq + 1) - query_start
    if first_query >= num_queries:
        return
    seq_len = tl.load(seq_lens + seq)

    # The positions of the block's first and last token, and the keys that any of them sees.
    first_position = seq_len - num_queries + first_query
    last_position = seq_len - num_queries + tl.minimum(first_query + BLOCK_Q, num_queries) - 1
    end_key = tl.maximum(last_position + 1, 0)
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(first_position - window + 1, 0)
    first_tile = first_key // BLOCK_N
    last_tile = tl.cdiv(end_key, BLOCK_N)
    if SPLIT:
        tiles = tl.maximum(tl.cdiv(last_tile - first_tile, num_splits), MIN_TILES)
        first_tile += segment * tiles
        last_tile = tl.minimum(first_tile + tiles, last_tile)

    rows = tl.arange(0, BLOCK_M)
    queries = first_query + rows // GROUP
    tokens = (query_start + queries).to(tl.int64)
    heads = kv_head * GROUP + rows % GROUP
    valid = (rows < BLOCK_Q * GROUP) & (queries < num_queries)
    if SPLIT:
        lse_offsets = (tokens * NUM_HEADS + heads) * num_splits + segment
        # NOTE: by the first segment also a row without any key is written.
        if first_tile >= last_tile:
            tl.store(partial_lse + lse_offsets, float("-inf"), mask=valid)
            return

    offs_d = tl.arange(0, BLOCK_D)
    in_row = valid[:, None]
    if HEAD_DIM < BLOCK_D:
        in_row = in_row & (offs_d < HEAD_DIM)[None, :]
    q_offsets = tokens * stride_q_token + heads * stride_q_head
    q_tile = tl.load(q + q_offsets[:, None] + offs_d[None, :], mask=in_row, other=0.0)
    if UPCAST:
        q_tile = q_tile.to(tl.float32)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    positions = first_position + rows // GROUP
    k_cache += kv_head.to(tl.int64) * stride_kv_head
    v_cache += kv_head.to(tl.int64) * stride_kv_head
    table = block_tables + seq.to(tl.int64) * stride_table
    # NOTE: with one block a sequence (decode) the loads bound the time: masks are free, and one loop keeps its pipeline
    # full to the end. Elsewhere tiles that every row sees go through a loop without masks.
    full_start = first_tile
    full_end = first_tile
    if not ONE_BLOCK:
        if HAS_WINDOW:
            full_start = tl.maximum(tl.cdiv(tl.maximum(last_position - window + 1, 0), BLOCK_N), first_tile)
            full_start = tl.minimum(full_start, last_tile)
            acc, row_max, row_sum = _attend(
                acc, row_max, row_sum, q_tile, k_cache, v_cache, table, stride_block, stride_slot, positions,
                first_tile, full_start, first_key, end_key, scale, soft_cap, window,
                True, HAS_WINDOW, HAS_SOFT_CAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, "", PRECISION, UPCAST,
            )  # fmt: skip
        full_end = tl.maximum(tl.minimum((first_position + 1) // BLOCK_N, last_tile), full_start)
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q_tile, k_cache, v_cache, table, stride_block, stride_slot, positions,
            full_start, full_end, first_key, end_key, scale, soft_cap, window,
            False, HAS_WINDOW, HAS_SOFT_CAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, "", PRECISION, UPCAST,
        )  # fmt: skip
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q_tile, k_cache, v_cache, table, stride_block, stride_slot, positions,
        full_end, last_tile, first_key, end_key, scale, soft_cap, window,
        True, HAS_WINDOW, HAS_SOFT_CAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N,
        "evict_first" if ONE_BLOCK else "", PRECISION, UPCAST,
    )  # fmt: skip

    # NOTE: a row that saw no key has the sum 0; its result is 0, and its weight among segments too.
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    acc *= (1.0 / row_sum)[:, None]
    if SPLIT:
        tl.store(partial_lse + lse_offsets, row_max + tl.log2(row_sum), mask=valid)
        tl.store(partial_out + lse_offsets[:, None] * HEAD_DIM + offs_d[None, :], acc, mask=in_row)
    else:
        out_offsets = tokens * stride_out_token + heads * stride_out_head
        tl.store(out + out_offsets[:, None] + offs_d[None, :], acc.to(out.dtype.element_ty), mask=in_row)


@triton.jit(do_not_specialize=["num_seqs", "num_splits"], do_not_specialize_on_alignment=["query_starts"])
def paged_attention_reduce_kernel(
    out,
    partial_out,
    partial_lse,
    query_starts,
    num_seqs,
    num_splits,
    stride_out_token,
    stride_out_head,
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
    offsets = token * stride_out_token + head * stride_out_head + offs_d
    tl.store(out + offsets, acc.to(out.dtype.element_ty), mask=offs_d < HEAD_DIM)


def choose_splits(device: Device, tile: Tile, num_programs: int, max_keys: int) -> int:
    """Segments of the keys that fill the device: as few as come within 5 % of the best use of its last wave.

    num_programs: programs without splits. max_keys: most keys that one of them goes through.
    """
    slots = device.num_sms * tile.programs_per_sm
    for_keys = max(1, max_keys // max(MIN_SEGMENT, tile.keys))
    for_waves = max(1, -(-MAX_WAVES * slots // num_programs))
    choices = range(1, min(MAX_SPLITS, for_keys, for_waves) + 1)
    waves = [num_programs * splits / slots for splits in choices]
    use = [full / math.ceil(full) for full in waves]
    return next(splits for splits in choices if use[splits - 1] >= 0.95 * max(use))


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
    if k_cache.stride() != v_cache.stride():
        raise ValueError("k_cache and v_cache must have equal strides: allocate both in the same way")
    if block_size & (block_size - 1) or block_size < 8:
        raise ValueError(f"block_size {block_size} is not supported: choose a power of two from 16 on")
    if scale <= 0:
        raise ValueError(f"scale must be positive, not {scale}")
    if out is None:
        out = torch.empty(num_tokens, num_heads, head_dim, dtype=q.dtype, device=q.device)
    num_seqs = seq_lens.shape[0]
    if num_tokens == 0 or num_seqs == 0:
        return out

    device = device_of(q.device)
    block_d = max(16, triton.next_power_of_2(head_dim))
    decode = max_query_len * group <= DECODE_ROWS or max_query_len == 1
    if tile is None:
        tile = attention_tile(device.family, block_d, q.element_size(), decode)
    rows = max(tile.rows, triton.next_power_of_2(group))
    block_q = rows // group
    one_block = decode and max_query_len <= block_q
    num_query_blocks = num_seqs if one_block else num_tokens // block_q + num_seqs
    num_programs = num_query_blocks * num_kv_heads
    if num_splits is None:
        max_keys = max_seq_len if sliding_window is None else min(max_seq_len, sliding_window + max_query_len)
        num_splits = choose_splits(device, tile, num_programs, max_keys)
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits must be from 1 to {MAX_SPLITS}, not {num_splits}")
    partial_out = partial_lse = out
    if num_splits > 1:
        partial_out = torch.empty(num_tokens * num_heads * num_splits * head_dim, dtype=torch.float32, device=q.device)
        partial_lse = torch.empty(num_tokens * num_heads * num_splits, dtype=torch.float32, device=q.device)

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
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_SIZE=block_size,
        BLOCK_M=rows,
        BLOCK_N=tile.keys,
        ONE_BLOCK=one_block,
        SPLIT=num_splits > 1,
        MIN_TILES=max(1, MIN_SEGMENT // tile.keys),
        HAS_WINDOW=sliding_window is not None,
        HAS_SOFT_CAP=soft_cap is not None,
        PRECISION="tf32x3" if q.dtype == torch.float32 else "ieee",
        # NOTE: Triton's interpreter multiplies the bits of bfloat16 as integers in a dot.
        UPCAST=q.dtype == torch.bfloat16 and device is INTERPRETER,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if num_splits > 1:
        paged_attention_reduce_kernel[(num_tokens * num_heads,)](
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
            BLOCK_D=block_d,
            MAX_SPLITS=MAX_SPLITS,
            CHUNK=REDUCE_CHUNK,
            num_warps=4,
        )
    return out


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """What `paged_attention` launches: plain bfloat16 heads of 128; with full every tile, option and odd shape."""
    for capability in CAPABILITIES:
        for decode, split in product((True, False), (True, False)):
            yield _variant(capability, decode=decode, split=split)
    yield _reduce_variant("bf16", 128)
    if not full:
        return
    shapes = (
        ("bf16", 64, 16),
        ("bf16", 80, 16),
        ("bf16", 96, 32),
        ("fp16", 128, 32),
        ("bf16", 128, 64),
        ("bf16", 256, 16),
    )
    shapes += (("fp32", 64, 16), ("fp32", 80, 32), ("fp32", 128, 16), ("fp32", 256, 64))
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
    for dtype, head_dim in product(("bf16", "fp16", "fp32"), (64, 80, 256)):
        yield _reduce_variant(dtype, head_dim)


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
    block_d = triton.next_power_of_2(head_dim)
    tile = attention_tile(family_of(*divmod(capability, 10)), block_d, 4 if dtype == "fp32" else 2, decode)
    constants = {
        "NUM_KV_HEADS": 8,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "BLOCK_SIZE": block_size,
        "BLOCK_M": max(tile.rows, triton.next_power_of_2(group)),
        "BLOCK_N": tile.keys,
        "ONE_BLOCK": decode,
        "SPLIT": split,
        "MIN_TILES": max(1, MIN_SEGMENT // tile.keys),
        "HAS_WINDOW": options,
        "HAS_SOFT_CAP": options,
        "PRECISION": "tf32x3" if dtype == "fp32" else "ieee",
        "UPCAST": False,
    }
    strides = ("stride_out_token", "stride_out_head", "stride_q_token", "stride_q_head")
    strides += ("stride_block", "stride_slot", "stride_kv_head")
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
        "stride_table": "i32",
        **dict.fromkeys(constants, "constexpr"),
    }
    return KernelVariant(
        name=f"paged_attention {dtype} head_dim={head_dim} block_size={block_size} group={group} "
        f"{'decode' if decode else 'prefill'}{' split' if split else ''}{' window soft_cap' if options else ''}",
        kernel=paged_attention_kernel,
        signature=signature,
        constants=constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        aligned=frozenset(("out", "partial_out", "partial_lse", "q", "k_cache", "v_cache", *strides)),
        spills_allowed=False,
        capabilities=(capability,),
    )


def _reduce_variant(dtype: str, head_dim: int) -> KernelVariant:
    constants = {
        "NUM_HEADS": 32,
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "MAX_SPLITS": MAX_SPLITS,
        "CHUNK": REDUCE_CHUNK,
    }
    return KernelVariant(
        name=f"paged_attention_reduce {dtype} head_dim={head_dim}",
        kernel=paged_attention_reduce_kernel,
        signature={
            "out": f"*{dtype}",
            "partial_out": "*fp32",
            "partial_lse": "*fp32",
            "query_starts": "*i32",
            "num_seqs": "i32",
            "num_splits": "i32",
            "stride_out_token": "i32",
            "stride_out_head": "i32",
            **dict.fromkeys(constants, "constexpr"),
        },
        constants=constants,
        aligned=frozenset({"out", "partial_out", "partial_lse", "stride_out_token", "stride_out_head"}),
        spills_allowed=False,
    )
