"""Draws a token a row: temperature, top-k, top-p and min-p without a sort, and Gumbel-max.

A row is taken apart into chunks of 4096 tokens, one program each, whatever the number of rows: one row alone fills the
device with the programs of its chunks, and the order in which masses are added never depends on the batch.

1. `_largest_kernel`, a chunk: its largest logit and that one's id.
2. `_bucket_kernel`, a chunk, only of rows with top-k or top-p: how many tokens, of what weight, lie within each of a
   few distances from the row's largest logit.
3. `_draw_kernel`, a chunk: rows without top-k and top-p are drawn (the best of logit plus noise in the chunk). Of the
   others, the tokens within the nearest distance that holds all that can be kept are copied, in order of their ids.
4. `_finish_kernel`, a row: greedy and drawn rows take the best chunk's token. Else the border is searched among the
   copied tokens, or the whole row where those are too many, and the token drawn from what it keeps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.gumbel import CHUNK, LANES, gumbel, noise_of, noise_words
from kernels.row_parameters import Column
from kernels.threshold_search import distances, find_border, load_distances, needed_ties
from kernels.variant import KernelVariant

BUCKETS = tl.constexpr(8)
CANDIDATES = tl.constexpr(4096)
"""Tokens copied for the search at most."""
TILE = tl.constexpr(2048)
"""Tokens at a time in the search."""
SPREAD = tl.constexpr(32.0)
"""Logits further than this below their chunk's largest count as this far in the choice of buckets."""
NO_ID = tl.constexpr(2**31 - 1)
MIN_CHUNKS = 64
"""Chunks that one compiled kernel is made for at least: 262,144 tokens."""

COLUMNS = tl.constexpr(len(Column))
TEMPERATURE = tl.constexpr(Column.TEMPERATURE.value)
TOP_K = tl.constexpr(Column.TOP_K.value)
TOP_P = tl.constexpr(Column.TOP_P.value)
MIN_P = tl.constexpr(Column.MIN_P.value)
SEED_LOW = tl.constexpr(Column.SEED_LOW.value)
SEED_HIGH = tl.constexpr(Column.SEED_HIGH.value)
INDEX = tl.constexpr(Column.INDEX.value)

PLANS = tl.constexpr(4)
"""Entries of a row's plan: number of copied tokens (−1: too many), total weight, theirs, and how far they reach."""


@triton.jit
def _largest_kernel(logits, row_stride, vocab_size, num_chunks, chunk_largest, chunk_ids, chunk_sums):
    """Also the sum of the chunk's logits, cut at SPREAD below the largest: the buckets end at the row's mean."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    token_ids = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * row_stride + token_ids, token_ids < vocab_size, other=float("-inf"))
    values = tl.where(values == values, values, float("-inf"))
    largest = tl.max(values)
    place = row * num_chunks + chunk
    tl.store(chunk_largest + place, largest)
    tl.store(chunk_ids + place, tl.min(tl.where(values == largest, token_ids, NO_ID)))
    floor = tl.minimum(tl.maximum(largest, -3e38), 3e38) - SPREAD
    tl.store(chunk_sums + place, tl.sum(tl.where(token_ids < vocab_size, tl.maximum(values, floor), 0.0)))


@triton.jit
def _bucket_kernel(
    logits,
    row_stride,
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
    """Bucket b reaches (b + 1) / BUCKETS of the way from the largest logit to the mean."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    own = parameters + tl.load(row_indices + row) * COLUMNS
    temperature = tl.load(own + TEMPERATURE)
    if (temperature > 0) & _has_border(own, vocab_size):
        largest = _row_largest(chunk_largest + row * num_chunks, num_chunks, CHUNKS)
        chunks = tl.arange(0, CHUNKS)
        sums = tl.load(chunk_sums + row * num_chunks + chunks, chunks < num_chunks, other=0.0)
        # NOTE: the kernels after this one read the span that chunk 0 stores, and do not make it again: a sum may
        # round differently in another kernel.
        span = tl.maximum(largest - tl.sum(sums) / vocab_size, 0.0)
        if chunk == 0:
            tl.store(spans + row, span)
        token_ids = chunk * CHUNK + tl.arange(0, CHUNK)
        values = tl.load(logits + row * row_stride + token_ids, token_ids < vocab_size, other=float("-inf"))
        divisor = _divisor(temperature)
        found = distances(values, largest, divisor)
        weights = tl.exp(-found)
        place = row * num_chunks + chunk
        tl.store(chunk_masses + place, tl.sum(weights))
        for bucket in tl.static_range(BUCKETS):
            is_within = (found <= _reach(span, bucket, divisor)) & (token_ids < vocab_size)
            tl.store(bucket_counts + place * BUCKETS + bucket, tl.sum(is_within.to(tl.int32)))
            tl.store(bucket_masses + place * BUCKETS + bucket, tl.sum(tl.where(is_within, weights, 0.0)))


@triton.jit
def _draw_kernel(
    logits,
    row_stride,
    vocab_size,
    num_chunks,
    parameters,
    row_indices,
    positions,
    chunk_largest,
    chunk_ids,
    chunk_keys,
    chunk_masses,
    bucket_counts,
    bucket_masses,
    spans,
    plans,
    candidates,
    candidate_ids,
    CHUNKS: tl.constexpr,
):
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    own = parameters + tl.load(row_indices + row) * COLUMNS
    temperature = tl.load(own + TEMPERATURE)
    if temperature > 0:
        largest = _row_largest(chunk_largest + row * num_chunks, num_chunks, CHUNKS)
        divisor = _divisor(temperature)
        values = logits + row * row_stride
        if _has_border(own, vocab_size):
            first = row * num_chunks
            bucket, count, offset = _plan_candidates(
                own,
                first,
                chunk,
                num_chunks,
                vocab_size,
                chunk_masses,
                bucket_counts,
                bucket_masses,
                spans + row,
                plans + row * PLANS,
                CHUNKS,
            )
            if count >= 0:
                token_ids = chunk * CHUNK + tl.arange(0, CHUNK)
                found = distances(
                    tl.load(values + token_ids, token_ids < vocab_size, other=float("-inf")), largest, divisor
                )
                reach = _reach(tl.load(spans + row), bucket, divisor)
                is_within = (found <= reach) & (token_ids < vocab_size)
                places = row * CANDIDATES + offset + tl.cumsum(is_within.to(tl.int32)) - 1
                tl.store(candidates + places, found, is_within)
                tl.store(candidate_ids + places, token_ids, is_within)
        else:
            key, token_id = _draw_chunk(values, chunk, vocab_size, largest, divisor, own, tl.load(positions + row))
            tl.store(chunk_keys + row * num_chunks + chunk, key)
            tl.store(chunk_ids + row * num_chunks + chunk, token_id)


@triton.jit
def _finish_kernel(
    logits,
    row_stride,
    vocab_size,
    num_chunks,
    parameters,
    row_indices,
    positions,
    chunk_largest,
    chunk_ids,
    chunk_keys,
    plans,
    candidates,
    candidate_ids,
    out,
    CHUNKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    own = parameters + tl.load(row_indices + row) * COLUMNS
    temperature = tl.load(own + TEMPERATURE)
    if (temperature > 0) & _has_border(own, vocab_size):
        values = logits + row * row_stride
        near = candidates + row * CANDIDATES
        near_ids = candidate_ids + row * CANDIDATES
        largest = _row_largest(chunk_largest + row * num_chunks, num_chunks, CHUNKS)
        divisor = _divisor(temperature)
        plan = plans + row * PLANS
        num_near = tl.load(plan).to(tl.int32)
        is_short = num_near >= 0
        count = tl.where(is_short, num_near, vocab_size)
        border, last_tie = _find_kept(own, values, near, near_ids, is_short, count, vocab_size, largest, divisor, plan)
        token_id = _draw_kept(
            own, values, near, near_ids, is_short, count, largest, divisor, border, last_tie, tl.load(positions + row)
        )
        tl.store(out + row, token_id.to(tl.int64))
    else:
        chunks = tl.arange(0, CHUNKS)
        is_chunk = chunks < num_chunks
        if temperature > 0:
            keys = tl.load(chunk_keys + row * num_chunks + chunks, is_chunk, other=float("-inf"))
        else:
            keys = tl.load(chunk_largest + row * num_chunks + chunks, is_chunk, other=float("-inf"))
        ids = tl.load(chunk_ids + row * num_chunks + chunks, is_chunk, other=NO_ID)
        tl.store(out + row, tl.min(tl.where(keys == tl.max(keys), ids, NO_ID)).to(tl.int64))


@triton.jit
def _divisor(temperature):
    """float32, kept above 0 for temperatures that would be rounded to it."""
    return tl.maximum(temperature.to(tl.float32), 1e-30)


@triton.jit
def _has_border(own, vocab_size):
    """Whether the row has top-k or top-p."""
    top_k = tl.load(own + TOP_K)
    return ((top_k > 0) & (top_k < vocab_size)) | (tl.load(own + TOP_P) < 1.0)


@triton.jit
def _row_largest(chunk_largest, num_chunks, CHUNKS: tl.constexpr):
    """The row's largest logit, made finite."""
    chunks = tl.arange(0, CHUNKS)
    largest = tl.max(tl.load(chunk_largest + chunks, chunks < num_chunks, other=float("-inf")))
    return tl.minimum(tl.maximum(largest, -3.4028234663852886e38), 3.4028234663852886e38)


@triton.jit
def _reach(span, bucket, divisor):
    """Distance that a bucket reaches. NOTE: rounds alike in every kernel."""
    return tl.div_rn(span * ((bucket + 1) * (1.0 / BUCKETS)), divisor)


@triton.jit
def _plan_candidates(
    own,
    first,
    chunk,
    num_chunks,
    vocab_size,
    chunk_masses,
    bucket_counts,
    bucket_masses,
    span,
    plan,
    CHUNKS: tl.constexpr,
):
    """The smallest bucket that holds all that top-k, or else top-p, keeps: (bucket, its tokens, those before `chunk`).

    A count of −1 where no bucket does, or the tokens are too many to be copied. Chunk 0 stores the row's plan.
    """
    top_k = tl.load(own + TOP_K)
    top_p = tl.load(own + TOP_P)
    chunks = tl.arange(0, CHUNKS)
    buckets = tl.arange(0, BUCKETS)
    places = (first + chunks[:, None]) * BUCKETS + buckets[None, :]
    is_chunk = (chunks < num_chunks)[:, None]
    counts = tl.load(bucket_counts + places, is_chunk, other=0)
    row_counts = tl.sum(counts, axis=0)
    row_masses = tl.sum(tl.load(bucket_masses + places, is_chunk, other=0.0).to(tl.float64), axis=0)
    total = tl.sum(tl.load(chunk_masses + first + chunks, chunks < num_chunks, other=0.0).to(tl.float64))
    has_rank = (top_k > 0) & (top_k < vocab_size)
    suffices = tl.where(has_rank, row_counts >= top_k, row_masses / total >= top_p)
    bucket = tl.min(tl.where(suffices, buckets, BUCKETS))
    count = tl.sum(tl.where(buckets == bucket, row_counts, 0))
    count = tl.where((bucket < BUCKETS) & (count <= CANDIDATES), count, -1)
    is_before = (chunks[:, None] < chunk) & (buckets[None, :] == bucket)
    if chunk == 0:
        tl.store(plan, count.to(tl.float64))
        tl.store(plan + 1, total)
        tl.store(plan + 2, tl.sum(tl.where(buckets == bucket, row_masses, 0.0)))
        reach = _reach(tl.load(span), bucket, _divisor(tl.load(own + TEMPERATURE)))
        tl.store(plan + 3, reach.to(tl.float64))
    return bucket, count, tl.sum(tl.where(is_before, counts, 0))


@triton.jit
def _draw_chunk(values, chunk, vocab_size, largest, divisor, own, position):
    """The best key, −distance plus noise, among the chunk's tokens that min-p keeps, and the lowest id that has it."""
    min_p = tl.load(own + MIN_P).to(tl.float32)
    lanes = tl.arange(0, LANES)
    words = noise_words(_seed(own), tl.load(own + INDEX).to(tl.int64), position, chunk * LANES + lanes)
    best = tl.full((LANES,), float("-inf"), dtype=tl.float32)
    best_ids = chunk * CHUNK + lanes
    for part in tl.static_range(CHUNK // LANES):
        token_ids = chunk * CHUNK + part * LANES + lanes
        found = distances(tl.load(values + token_ids, token_ids < vocab_size, other=float("-inf")), largest, divisor)
        keys = tl.where(tl.exp(-found) >= min_p, gumbel(words[part]) - found, float("-inf"))
        best_ids = tl.where(keys > best, token_ids, best_ids)
        best = tl.maximum(keys, best)
    key = tl.max(best)
    return key, tl.min(tl.where(best == key, best_ids, NO_ID))


@triton.jit
def _seed(own):
    return (tl.load(own + SEED_HIGH).to(tl.int64) << 32) | tl.load(own + SEED_LOW).to(tl.int64)


@triton.jit
def _find_kept(own, values, near, near_ids, is_short, count, vocab_size, largest, divisor, plan):
    """(bits of the furthest distance that top-k and top-p keep, the highest id kept at just that distance)."""
    top_k = tl.load(own + TOP_K)
    top_p = tl.load(own + TOP_P)
    total = tl.load(plan + 1)
    # NOTE: what lies within the plan's reach is all that was copied; the search over a whole row starts at inf.
    high = tl.where(is_short, tl.load(plan + 3).to(tl.float32).to(tl.int32, bitcast=True), 0x7F800000)
    high_mass = tl.where(is_short, tl.load(plan + 2), total)
    high_count = count
    ties = 0
    kept_ties = 0
    if (top_k > 0) & (top_k < vocab_size):
        rank = top_k.to(tl.int32)
        _, low_count, low_mass, high, high_count, high_mass = find_border(
            values, near, is_short, count, largest, divisor, rank, top_p, total, high, high_count, high_mass,
            BY_MASS=False, TILE=TILE,
        )  # fmt: skip
        ties = high_count - low_count
        kept_ties = rank - low_count
        if kept_ties < ties:
            weight = tl.exp(-high.to(tl.float32, bitcast=True)).to(tl.float64)
            high_mass = low_mass + kept_ties * weight
        total = high_mass
    if top_p < 1.0:
        rank_border = high
        _, low_count, low_mass, high, high_count, high_mass = find_border(
            values, near, is_short, count, largest, divisor, 0, top_p, total, high, high_count, high_mass,
            BY_MASS=True, TILE=TILE,
        )  # fmt: skip
        equals = high_count - low_count
        needed = needed_ties(low_mass, high, equals, top_p, total)
        kept_ties = tl.where((high == rank_border) & (kept_ties > 0), tl.minimum(needed, kept_ties), needed)
        ties = equals
    last_tie = NO_ID
    if kept_ties < ties:
        last_tie = _find_tie(values, near, near_ids, is_short, count, largest, divisor, high, kept_ties)
    return high, last_tie


@triton.jit
def _find_tie(values, near, near_ids, is_short, count, largest, divisor, border, number):
    """The id of the `number`-th token, from 1, of those whose distance has the bits `border`."""
    seen = 0
    token_id = -1
    for start in range(0, count, TILE):
        found = load_distances(values, near, is_short, start, count, largest, divisor, TILE)
        places = start + tl.arange(0, TILE)
        is_tie = (found.to(tl.int32, bitcast=True) == border) & (places < count)
        order = seen + tl.cumsum(is_tie.to(tl.int32))
        place = tl.max(tl.where(is_tie & (order == number), places, -1))
        token_id = tl.maximum(token_id, place)
        seen += tl.sum(is_tie.to(tl.int32))
    if is_short:
        token_id = tl.load(near_ids + token_id)
    return token_id


@triton.jit
def _draw_kept(own, values, near, near_ids, is_short, count, largest, divisor, border, last_tie, position):
    """Gumbel-max over the tokens within the border that min-p keeps too. Returns int32; 0 for a row of −inf."""
    min_p = tl.load(own + MIN_P).to(tl.float32)
    seed = _seed(own)
    index = tl.load(own + INDEX).to(tl.int64)
    num_near = tl.where(is_short, count, 0)
    best = float("-inf")
    best_id = 0
    for start in range(0, count, TILE):
        found = load_distances(values, near, is_short, start, count, largest, divisor, TILE)
        places = start + tl.arange(0, TILE)
        token_ids = tl.where(is_short, tl.load(near_ids + places, places < num_near, other=NO_ID), places)
        bits = found.to(tl.int32, bitcast=True)
        is_kept = (bits < border) | ((bits == border) & (token_ids <= last_tie))
        is_kept = is_kept & (tl.exp(-found) >= min_p)
        keys = tl.where(is_kept, noise_of(seed, index, position, token_ids) - found, float("-inf"))
        key = tl.max(keys)
        token_id = tl.min(tl.where(keys == key, token_ids, NO_ID))
        best_id = tl.where(key > best, token_id, best_id)
        best = tl.maximum(key, best)
    return best_id


class SamplingWorkspace:
    """Scratch memory of `sample_tokens` for up to `max_rows` rows; about 34 KiB a row. Contents need no clearing."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        num_chunks = triton.cdiv(vocab_size, CHUNK.value)

        def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty((max_rows, *shape), dtype=dtype, device=device)

        self.max_rows = max_rows
        self.num_chunks = num_chunks
        self.chunk_largest = make(num_chunks)
        self.chunk_ids = make(num_chunks, dtype=torch.int32)
        self.chunk_keys = make(num_chunks)
        self.chunk_sums = make(num_chunks)
        self.chunk_masses = make(num_chunks)
        self.bucket_counts = make(num_chunks, BUCKETS.value, dtype=torch.int32)
        self.bucket_masses = make(num_chunks, BUCKETS.value)
        self.spans = make()
        self.plans = make(PLANS.value, dtype=torch.float64)
        self.candidates = make(CANDIDATES.value)
        self.candidate_ids = make(CANDIDATES.value, dtype=torch.int32)


def sample_tokens(
    logits: torch.Tensor,
    parameters: torch.Tensor,
    row_indices: torch.Tensor,
    positions: torch.Tensor,
    *,
    has_draws: bool = True,
    has_borders: bool = True,
    workspace: SamplingWorkspace | None = None,
) -> torch.Tensor:
    """The next token of each row, int64 (R).

    logits: float32 (R, vocab), rows of any stride, read only. NaN counts as −inf.
    parameters: float64 (rows, len(Column)), the table of `kernels.row_parameters`. row_indices: int64 (R), each row's
    place in it. positions: int64 (R), of the tokens to draw.
    has_draws, has_borders: whether any row has a temperature, or top-k or top-p beside one; False saves the launches
    for them, and must be true of every row.

    A row of temperature 0 takes its largest logit, the lowest id among equals. Another is drawn from
    softmax(logits / temperature), cut in the order top-k, top-p, min-p to the tokens that the sorted definition keeps:
    tokens in order of (−scaled logit, id), scaled as (logit − largest) / temperature in float32; the first k; of these
    the shortest run whose share of their weight is at least top_p; of these the ones with at least min_p times the
    likeliest's weight. Counts are exact, ties at the border included. Masses are sums of float32 weights, added up
    pairwise within some thousand tokens and in float64 beyond (a relative error of about 1e-6 at most): the run of
    top-p can differ from the definition where the share comes that close to top_p.

    Draws are Gumbel-max, the largest −distance + noise, with noise of (seed, index, position, token id) alone
    (`kernels.gumbel`; arXiv:1611.01144, section 2, for the method). A row's token depends on nothing but its logits,
    parameters and position: neither on other rows nor on its place. A logit of −inf is never drawn while another is
    larger; a row of nothing but −inf and NaN gives token 0.
    """
    num_rows, vocab_size = logits.shape
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    assert parameters.dtype == torch.float64
    assert parameters.is_contiguous()
    assert row_indices.shape == positions.shape == (num_rows,)
    assert row_indices.dtype == positions.dtype == torch.int64
    assert row_indices.is_contiguous()
    assert positions.is_contiguous()
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return out
    w = SamplingWorkspace(num_rows, vocab_size, logits.device) if workspace is None else workspace
    num_chunks = triton.cdiv(vocab_size, CHUNK.value)
    assert num_rows <= w.max_rows
    assert num_chunks == w.num_chunks
    grid = (num_chunks, num_rows)
    source = (logits, logits.stride(0), vocab_size, num_chunks)
    chunks = {"CHUNKS": _padded_chunks(num_chunks)}
    _largest_kernel[grid](*source, w.chunk_largest, w.chunk_ids, w.chunk_sums, num_warps=4)
    if has_draws and has_borders:
        _bucket_kernel[grid](
            *source,
            parameters,
            row_indices,
            w.chunk_largest,
            w.chunk_sums,
            w.chunk_masses,
            w.bucket_counts,
            w.bucket_masses,
            w.spans,
            **chunks,
            num_warps=4,
        )
    if has_draws:
        _draw_kernel[grid](
            *source,
            parameters,
            row_indices,
            positions,
            w.chunk_largest,
            w.chunk_ids,
            w.chunk_keys,
            w.chunk_masses,
            w.bucket_counts,
            w.bucket_masses,
            w.spans,
            w.plans,
            w.candidates,
            w.candidate_ids,
            **chunks,
            num_warps=4,
        )
    _finish_kernel[(num_rows,)](
        *source,
        parameters,
        row_indices,
        positions,
        w.chunk_largest,
        w.chunk_ids,
        w.chunk_keys,
        w.plans,
        w.candidates,
        w.candidate_ids,
        out,
        **chunks,
        num_warps=8,
    )
    return out


def _padded_chunks(num_chunks: int) -> int:
    return max(MIN_CHUNKS, int(triton.next_power_of_2(num_chunks)))


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """One form serves vocabularies up to 262,144 tokens; `full` adds a larger one and unaligned rows."""
    types = {
        **dict.fromkeys(("logits", "chunk_largest", "chunk_keys", "chunk_sums", "chunk_masses"), "*fp32"),
        **dict.fromkeys(("bucket_masses", "spans", "candidates"), "*fp32"),
        **dict.fromkeys(("chunk_ids", "bucket_counts", "candidate_ids"), "*i32"),
        **dict.fromkeys(("parameters", "plans"), "*fp64"),
        **dict.fromkeys(("row_indices", "positions", "out"), "*i64"),
        **dict.fromkeys(("row_stride", "vocab_size", "num_chunks"), "i32"),
        "CHUNKS": "constexpr",
    }
    for kernel, num_warps in ((_largest_kernel, 4), (_bucket_kernel, 4), (_draw_kernel, 4), (_finish_kernel, 8)):
        name = kernel.__name__.removeprefix("_").removesuffix("_kernel")
        signature = {argument: types[argument] for argument in kernel.arg_names}
        pointers = {argument for argument, kind in signature.items() if kind.startswith("*")}
        for chunks in (MIN_CHUNKS, 2 * MIN_CHUNKS) if full and "CHUNKS" in signature else (MIN_CHUNKS,):
            for is_aligned in (True, False) if full else (True,):
                yield KernelVariant(
                    name=f"sample_tokens.{name}[{chunks} chunks{'' if is_aligned else ',unaligned'}]",
                    kernel=kernel,
                    signature=signature,
                    constants={"CHUNKS": chunks} if "CHUNKS" in signature else {},
                    num_warps=num_warps,
                    aligned=frozenset(pointers | ({"row_stride", "vocab_size"} if is_aligned else set())),
                )
