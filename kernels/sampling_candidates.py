"""The few tokens among which the border of top-k and top-p lies, taken out of a row, chunk by chunk.

`bucket_kernel` finds how many tokens, of what weight, lie within each of BUCKETS distances from the row's largest
logit. `copy_kernel` copies the tokens within the nearest of these that holds all that can be kept, in order of ids.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.noise import CHUNK
from kernels.sampling_row import (
    TOP_K,
    TOP_P,
    distances,
    has_border,
    has_rank,
    is_drawn,
    load_divisor,
    load_largest,
    load_logits,
    parameters_of,
)

BUCKETS = tl.constexpr(8)
CANDIDATES = tl.constexpr(4096)
"""Tokens copied at most."""
SPREAD = tl.constexpr(32.0)
"""Logits further than this below their chunk's largest count as this far in the choice of the distances."""
LARGEST_TERM = tl.constexpr(1e30)
"""Keeps their sum finite."""
PLANS = tl.constexpr(8)
"""Entries of a row's plan, float64:
0  number of copied tokens, −1 where they were too many
1  weight of all tokens
2  a distance that does not suffice for top-k, or else for top-p (−1: none is known)
3  number of tokens at or below it
4  weight of these
5  a distance that does suffice; all tokens at or below it are copied
6  number of tokens at or below it
7  weight of these
"""


@triton.jit
def sum_for_mean(values, largest, is_token):
    """A chunk's part of the row's mean logit, which the furthest bucket reaches to."""
    floor = tl.minimum(tl.maximum(largest, -LARGEST_TERM), LARGEST_TERM) - SPREAD
    return tl.sum(tl.where(is_token, tl.minimum(tl.maximum(values, floor), LARGEST_TERM), 0.0))


@triton.jit(do_not_specialize=["num_chunks"])
def bucket_kernel(
    logits,
    logits_stride,
    vocab_size,
    num_chunks,
    parameters,
    row_indices,
    chunk_largest,
    chunk_sums,
    chunk_masses,
    bucket_counts,
    bucket_masses,
    spans,
    CHUNKS: tl.constexpr,
):
    """One chunk a program. Bucket b reaches (b + 1) / BUCKETS of the way from the largest logit to the mean."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    own = parameters_of(parameters, row_indices, row)
    if is_drawn(own) & has_border(own, vocab_size):
        largest = load_largest(chunk_largest + row * num_chunks, num_chunks, CHUNKS)
        divisor = load_divisor(own)
        chunks = tl.arange(0, CHUNKS)
        sums = tl.load(chunk_sums + row * num_chunks + chunks, chunks < num_chunks, other=0.0)
        # NOTE: later kernels read the span that chunk 0 stores: made anew, the sum could round differently there.
        span = tl.maximum(largest - tl.sum(sums) / vocab_size, 0.0)
        if chunk == 0:
            tl.store(spans + row, span)
        token_ids = chunk * CHUNK + tl.arange(0, CHUNK)
        values = load_logits(logits, logits_stride, row, token_ids, vocab_size)
        found = distances(values, largest, divisor)
        weights = tl.exp(-found)
        place = row * num_chunks + chunk
        tl.store(chunk_masses + place, tl.sum(weights))
        for bucket in tl.static_range(BUCKETS):
            is_within = (found <= _reach(span, bucket, divisor)) & (token_ids < vocab_size)
            tl.store(bucket_counts + place * BUCKETS + bucket, tl.sum(is_within.to(tl.int32)))
            tl.store(bucket_masses + place * BUCKETS + bucket, tl.sum(tl.where(is_within, weights, 0.0)))


@triton.jit(do_not_specialize=["num_chunks"])
def copy_kernel(
    logits,
    logits_stride,
    vocab_size,
    num_chunks,
    parameters,
    row_indices,
    chunk_largest,
    chunk_masses,
    bucket_counts,
    bucket_masses,
    spans,
    plans,
    candidates,
    candidate_ids,
    CHUNKS: tl.constexpr,
):
    """One chunk a program; chunk 0 stores the row's plan."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    own = parameters_of(parameters, row_indices, row)
    if is_drawn(own) & has_border(own, vocab_size):
        chunks = tl.arange(0, CHUNKS)
        buckets = tl.arange(0, BUCKETS)
        places = (row * num_chunks + chunks[:, None]) * BUCKETS + buckets[None, :]
        is_chunk = (chunks < num_chunks)[:, None]
        counts = tl.load(bucket_counts + places, is_chunk, other=0)
        row_counts = tl.sum(counts, axis=0)
        row_masses = tl.sum(tl.load(bucket_masses + places, is_chunk, other=0.0).to(tl.float64), axis=0)
        masses = tl.load(chunk_masses + row * num_chunks + chunks, chunks < num_chunks, other=0.0)
        # NOTE: the likeliest token weighs 1, so it is less only where there is nothing to draw.
        total = tl.maximum(tl.sum(masses.to(tl.float64)), 1.0)
        suffices = tl.where(
            has_rank(own, vocab_size),
            row_counts >= tl.load(own + TOP_K),
            row_masses / total >= tl.load(own + TOP_P),
        )
        bucket = tl.min(tl.where(suffices, buckets, BUCKETS))
        is_found = bucket < BUCKETS
        count = tl.where(is_found, tl.sum(tl.where(buckets == bucket, row_counts, 0)), vocab_size)
        num_copied = tl.where(is_found & (count <= CANDIDATES), count, -1)
        divisor = load_divisor(own)
        span = tl.load(spans + row)
        reach = _reach(span, bucket, divisor)
        if chunk == 0:
            is_short_of = buckets == bucket - 1
            mass = tl.sum(tl.where(buckets == bucket, row_masses, 0.0))
            plan = plans + row * PLANS
            tl.store(plan, num_copied.to(tl.float64))
            tl.store(plan + 1, total)
            tl.store(plan + 2, tl.where(bucket > 0, _reach(span, bucket - 1, divisor), -1.0).to(tl.float64))
            tl.store(plan + 3, tl.sum(tl.where(is_short_of, row_counts, 0)).to(tl.float64))
            tl.store(plan + 4, tl.sum(tl.where(is_short_of, row_masses, 0.0)))
            tl.store(plan + 5, tl.where(is_found, reach, float("inf")).to(tl.float64))
            tl.store(plan + 6, count.to(tl.float64))
            tl.store(plan + 7, tl.where(is_found, mass, total))
        if num_copied > 0:
            is_before = (chunks[:, None] < chunk) & (buckets[None, :] == bucket)
            offset = tl.sum(tl.where(is_before, counts, 0))
            largest = load_largest(chunk_largest + row * num_chunks, num_chunks, CHUNKS)
            token_ids = chunk * CHUNK + tl.arange(0, CHUNK)
            values = load_logits(logits, logits_stride, row, token_ids, vocab_size)
            found = distances(values, largest, divisor)
            is_within = (found <= reach) & (token_ids < vocab_size)
            entries = row * CANDIDATES + offset + tl.cumsum(is_within.to(tl.int32)) - 1
            tl.store(candidates + entries, found, is_within)
            tl.store(candidate_ids + entries, token_ids, is_within)


@triton.jit
def _reach(span, bucket, divisor):
    """Distance that a bucket reaches. NOTE: rounds alike in every kernel."""
    return tl.div_rn(span * ((bucket + 1) * (1.0 / BUCKETS)), divisor)
