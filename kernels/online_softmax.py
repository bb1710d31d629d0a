"""The inner loop of attention over a paged cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load_blocks(
    table, tile, last_tile, end_key, MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Cache blocks of a tile's keys: one for all where the tile lies within a block, else one a key.

    None is read past the last key (MASKED), or from `last_tile` on.
    """
    if BLOCK_N > BLOCK_SIZE:
        places = tile * (BLOCK_N // BLOCK_SIZE) + tl.arange(0, BLOCK_N) // BLOCK_SIZE
    else:
        places = tile // (BLOCK_SIZE // BLOCK_N)
    # NOTE: where no key is masked the condition is one for the whole tile: `places * 0` only gives it their shape.
    is_read = places * BLOCK_SIZE < end_key if MASKED else places * 0 + tile < last_tile
    return tl.load(table + places, mask=is_read, other=0)


@triton.jit
def attend(
    acc,
    row_max,
    row_sum,
    q,
    k_cache,
    v_cache,
    table,
    cache_block_stride,
    cache_slot_stride,
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
    tl.assume(cache_block_stride >= 0)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    # NOTE: the block ids are loaded a turn ahead, so that the addresses of a tile never wait for them.
    blocks = _load_blocks(table, first_tile, last_tile, end_key, MASKED, BLOCK_SIZE, BLOCK_N)
    for tile in range(first_tile, last_tile):
        keys = tile * BLOCK_N + offs_n
        # NOTE: ids and strides are not negative. Where that is known their product is one instruction, else several.
        within = offs_n % BLOCK_SIZE if BLOCK_N >= BLOCK_SIZE else keys % BLOCK_SIZE
        offsets = blocks.to(tl.uint32).to(tl.int64) * cache_block_stride + within * cache_slot_stride
        blocks = _load_blocks(table, tile + 1, last_tile, end_key, MASKED, BLOCK_SIZE, BLOCK_N)
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
