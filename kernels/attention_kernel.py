"""The kernel of `kernels.paged_attention`."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.online_softmax import attend


@triton.jit(
    do_not_specialize=["num_seqs", "num_query_blocks", "num_splits", "table_stride", "window"],
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
    out_token_stride,
    out_head_stride,
    q_token_stride,
    q_head_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    table_stride,
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
    query_end = tl.load(query_starts + seq + 1)
    num_queries = query_end - query_start
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
    if SPLIT:  # noqa: SIM102 - decided when it is compiled
        if first_tile >= last_tile:
            no_keys = (tokens * NUM_HEADS + heads) * num_splits + segment
            tl.store(partial_lse + no_keys, float("-inf"), mask=valid)
            return

    offs_d = tl.arange(0, BLOCK_D)
    in_row = valid[:, None]
    if HEAD_DIM < BLOCK_D:
        in_row = in_row & (offs_d < HEAD_DIM)[None, :]
    q_offsets = tokens * q_token_stride + heads * q_head_stride
    q_tile = tl.load(q + q_offsets[:, None] + offs_d[None, :], mask=in_row, other=0.0)
    if UPCAST:
        q_tile = q_tile.to(tl.float32)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    positions = first_position + rows // GROUP
    k_cache += kv_head.to(tl.int64) * cache_head_stride
    v_cache += kv_head.to(tl.int64) * cache_head_stride
    table = block_tables + seq.to(tl.int64) * table_stride
    # NOTE: with one block a sequence (decode) the loads bound the time: masks are free, and one loop keeps its pipeline
    # full to the end. Elsewhere tiles that every row sees go through a loop without masks.
    full_start = first_tile
    full_end = first_tile
    if not ONE_BLOCK:
        if HAS_WINDOW:
            full_start = tl.maximum(tl.cdiv(tl.maximum(last_position - window + 1, 0), BLOCK_N), first_tile)
            full_start = tl.minimum(full_start, last_tile)
            acc, row_max, row_sum = attend(
                acc, row_max, row_sum, q_tile, k_cache, v_cache, table, cache_block_stride, cache_slot_stride,
                positions, first_tile, full_start, first_key, end_key, scale, soft_cap, window,
                True, HAS_WINDOW, HAS_SOFT_CAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, "", PRECISION, UPCAST,
            )  # fmt: skip
        full_end = tl.maximum(tl.minimum((first_position + 1) // BLOCK_N, last_tile), full_start)
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, q_tile, k_cache, v_cache, table, cache_block_stride, cache_slot_stride,
            positions, full_start, full_end, first_key, end_key, scale, soft_cap, window,
            False, HAS_WINDOW, HAS_SOFT_CAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, "", PRECISION, UPCAST,
        )  # fmt: skip
    acc, row_max, row_sum = attend(
        acc, row_max, row_sum, q_tile, k_cache, v_cache, table, cache_block_stride, cache_slot_stride,
        positions, full_end, last_tile, first_key, end_key, scale, soft_cap, window,
        True, HAS_WINDOW, HAS_SOFT_CAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N,
        "evict_first" if ONE_BLOCK else "", PRECISION, UPCAST,
    )  # fmt: skip

    # NOTE: the mask is made anew, from other values than above: else its predicates are kept across the loop, in
    # registers that some tiles do not have.
    valid = (rows < BLOCK_Q * GROUP) & (tokens < query_end)
    in_row = valid[:, None]
    if HEAD_DIM < BLOCK_D:
        in_row = in_row & (offs_d < HEAD_DIM)[None, :]
    # NOTE: a row that saw no key has the sum 0; its result is 0, and its weight among segments too.
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    acc *= (1.0 / row_sum)[:, None]
    if SPLIT:
        lse_offsets = (tokens * NUM_HEADS + heads) * num_splits + segment
        tl.store(partial_lse + lse_offsets, row_max + tl.log2(row_sum), mask=valid)
        tl.store(partial_out + lse_offsets[:, None] * HEAD_DIM + offs_d[None, :], acc, mask=in_row)
    else:
        out_offsets = tokens * out_token_stride + heads * out_head_stride
        tl.store(out + out_offsets[:, None] + offs_d[None, :], acc.to(out.dtype.element_ty), mask=in_row)
