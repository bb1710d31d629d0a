"""Draws a token a row: temperature, top-k, top-p and min-p without a sort, and Gumbel-max by an exponential race.

A row is taken apart into chunks of 4096 tokens, one program each, whatever the number of rows: one row alone fills the
device with the programs of its chunks, and the order in which masses are added never depends on the batch.

1. `_largest_kernel`, a chunk: its largest logit and that one's id.
2. Only with top-k or top-p, `bucket_kernel` and `copy_kernel`: `kernels.sampling_candidates`.
3. `_draw_kernel`, a chunk of a row without these: the race among its tokens.
4. `_finish_kernel`, a row: greedy and drawn rows take the token of the best chunk. For the others the border of what
   they keep is searched, and the token drawn within it (`kernels.sampling_border`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.arguments import check_contiguous, check_dense_rows, check_dtype, check_shape
from kernels.noise import CHUNK, LANES, noise_words, race_times
from kernels.sampling_border import draw_kept, find_kept
from kernels.sampling_candidates import BUCKETS, CANDIDATES, PLANS, bucket_kernel, copy_kernel, sum_for_mean
from kernels.sampling_row import (
    NO_ID,
    distances,
    has_border,
    is_drawn,
    load_divisor,
    load_index,
    load_largest,
    load_logits,
    load_min_p,
    load_seed,
    parameters_of,
)
from kernels.sizes import cdiv, next_power_of_2
from kernels.variant import KernelVariant

MIN_CHUNKS = 64
"""Chunks that one compiled kernel is made for at least: 262,144 tokens."""
CHUNK_WARPS = 8
ROW_WARPS = 16


@triton.jit(do_not_specialize=["num_chunks"])
def _largest_kernel(logits, logits_stride, vocab_size, num_chunks, chunk_largest, chunk_ids, chunk_sums):
    """One chunk a program."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    token_ids = chunk * CHUNK + tl.arange(0, CHUNK)
    is_token = token_ids < vocab_size
    values = load_logits(logits, logits_stride, row, token_ids, vocab_size)
    values = tl.where(values == values, values, float("-inf"))
    largest = tl.max(values)
    place = row * num_chunks + chunk
    tl.store(chunk_largest + place, largest)
    tl.store(chunk_ids + place, tl.min(tl.where(values == largest, token_ids, NO_ID)))
    tl.store(chunk_sums + place, sum_for_mean(values, largest, is_token))


@triton.jit(do_not_specialize=["num_chunks"])
def _draw_kernel(
    logits,
    logits_stride,
    vocab_size,
    num_chunks,
    parameters,
    row_indices,
    positions,
    chunk_largest,
    chunk_ids,
    chunk_times,
    CHUNKS: tl.constexpr,
):
    """One chunk a program: the least race time among the tokens that min-p keeps, and the lowest id that has it."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    own = parameters_of(parameters, row_indices, row)
    if is_drawn(own) & (has_border(own, vocab_size) == 0):
        largest = load_largest(chunk_largest + row * num_chunks, num_chunks, CHUNKS)
        divisor = load_divisor(own)
        min_p = load_min_p(own)
        lanes = tl.arange(0, LANES)
        words = noise_words(load_seed(own), load_index(own), tl.load(positions + row), chunk * LANES + lanes)
        least = tl.full((LANES,), float("inf"), dtype=tl.float32)
        least_ids = chunk * CHUNK + lanes
        for part in tl.static_range(CHUNK // LANES):
            token_ids = chunk * CHUNK + part * LANES + lanes
            values = load_logits(logits, logits_stride, row, token_ids, vocab_size)
            found = distances(values, largest, divisor)
            times = tl.where(tl.exp(-found) >= min_p, race_times(words[part], found), float("inf"))
            least_ids = tl.where(times < least, token_ids, least_ids)
            least = tl.minimum(times, least)
        time = tl.min(least)
        tl.store(chunk_times + row * num_chunks + chunk, time)
        tl.store(chunk_ids + row * num_chunks + chunk, tl.min(tl.where(least == time, least_ids, NO_ID)))


@triton.jit(do_not_specialize=["num_chunks"])
def _finish_kernel(
    logits,
    logits_stride,
    vocab_size,
    num_chunks,
    parameters,
    row_indices,
    positions,
    chunk_largest,
    chunk_ids,
    chunk_times,
    plans,
    candidates,
    candidate_ids,
    out,
    CHUNKS: tl.constexpr,
):
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)
    own = parameters_of(parameters, row_indices, row)
    if is_drawn(own) & has_border(own, vocab_size):
        values = logits + row * logits_stride
        near = candidates + row * CANDIDATES
        near_ids = candidate_ids + row * CANDIDATES
        plan = plans + row * PLANS
        largest = load_largest(chunk_largest + row * num_chunks, num_chunks, CHUNKS)
        divisor = load_divisor(own)
        num_near = tl.load(plan).to(tl.int32)
        is_short = num_near >= 0
        count = tl.where(is_short, num_near, vocab_size)
        border, last_tie = find_kept(own, values, near, near_ids, is_short, count, vocab_size, largest, divisor, plan)
        token_id = draw_kept(
            own, values, near, near_ids, is_short, count, largest, divisor, border, last_tie, tl.load(positions + row)
        )
        tl.store(out + row, token_id.to(tl.int64))
    else:
        chunks = tl.arange(0, CHUNKS)
        is_chunk = chunks < num_chunks
        if is_drawn(own):
            keys = tl.load(chunk_times + row * num_chunks + chunks, is_chunk, other=float("inf"))
        else:
            keys = -tl.load(chunk_largest + row * num_chunks + chunks, is_chunk, other=float("-inf"))
        ids = tl.load(chunk_ids + row * num_chunks + chunks, is_chunk, other=NO_ID)
        tl.store(out + row, tl.min(tl.where(keys == tl.min(keys), ids, NO_ID)).to(tl.int64))


class SamplingWorkspace:
    """Scratch memory of `sample_tokens` for up to `max_rows` rows; about 34 KiB a row. Contents need no clearing."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        num_chunks = cdiv(vocab_size, CHUNK.value)

        def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty((max_rows, *shape), dtype=dtype, device=device)

        self.max_rows = max_rows
        self.num_chunks = num_chunks
        self.chunk_largest = make(num_chunks)
        self.chunk_ids = make(num_chunks, dtype=torch.int32)
        self.chunk_times = make(num_chunks)
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
    has_draws: whether any row has a temperature above 0 and neither top-k nor top-p. has_borders: whether any has one
    of these beside it. False saves launches, and must be true of every row.

    A row of temperature 0 takes its largest logit, the lowest id among equals. Another is drawn from
    softmax(logits / temperature), cut in the order top-k, top-p, min-p to the tokens that the sorted definition keeps:
    tokens in order of (−scaled logit, id), scaled as (logit − largest) / temperature in float32; the first k; of these
    the shortest run whose share of their weight is at least top_p; of these the ones with at least min_p times the
    likeliest's weight. Counts are exact, ties at the border included. Masses are sums of float32 weights, added up
    pairwise within some thousand tokens and in float64 beyond (a relative error of about 1e-6 at most): the run of
    top-p can differ from the definition where the share comes that close to top_p.

    Draws are Gumbel-max with noise of (seed, index, position, token id) alone (`kernels.noise`). A row's token depends
    on nothing but its logits, parameters and position: neither on other rows nor on its place. A logit of −inf is never
    drawn while another is larger; a row of nothing but −inf and NaN gives token 0.
    Raises ValueError for other shapes, dtypes and strides, and for a workspace made for another size.
    """
    num_rows, vocab_size = logits.shape
    check_dtype(torch.float32, logits=logits)
    check_dense_rows(logits=logits)
    check_dtype(torch.float64, parameters=parameters)
    check_shape((num_rows,), row_indices=row_indices, positions=positions)
    check_dtype(torch.int64, row_indices=row_indices, positions=positions)
    check_contiguous(parameters=parameters, row_indices=row_indices, positions=positions)
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return out
    w = SamplingWorkspace(num_rows, vocab_size, logits.device) if workspace is None else workspace
    num_chunks = cdiv(vocab_size, CHUNK.value)
    if num_rows > w.max_rows or num_chunks != w.num_chunks:
        raise ValueError(f"the workspace is not made for {num_rows} rows of {vocab_size} logits: make one of that size")
    grid = (num_chunks, num_rows)
    source = (logits, logits.stride(0), vocab_size, num_chunks)
    rows = (parameters, row_indices)
    chunks = {"CHUNKS": _padded_chunks(num_chunks)}
    warps = {"num_warps": CHUNK_WARPS}
    largest, ids, times, masses = w.chunk_largest, w.chunk_ids, w.chunk_times, w.chunk_masses
    buckets = (w.bucket_counts, w.bucket_masses, w.spans)
    copies = (w.plans, w.candidates, w.candidate_ids)
    _largest_kernel[grid](*source, largest, ids, w.chunk_sums, **warps)
    if has_borders:
        bucket_kernel[grid](*source, *rows, largest, w.chunk_sums, masses, *buckets, **chunks, **warps)
        copy_kernel[grid](*source, *rows, largest, masses, *buckets, *copies, **chunks, **warps)
    if has_draws:
        _draw_kernel[grid](*source, *rows, positions, largest, ids, times, **chunks, **warps)
    _finish_kernel[(num_rows,)](
        *source, *rows, positions, largest, ids, times, *copies, out, **chunks, num_warps=ROW_WARPS
    )
    return out


def _padded_chunks(num_chunks: int) -> int:
    return max(MIN_CHUNKS, next_power_of_2(num_chunks))


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """One form serves vocabularies up to 262,144 tokens; `full` adds a larger one and unaligned rows."""
    types = {
        **dict.fromkeys(("logits", "chunk_largest", "chunk_times", "chunk_sums", "chunk_masses"), "*fp32"),
        **dict.fromkeys(("bucket_masses", "spans", "candidates"), "*fp32"),
        **dict.fromkeys(("chunk_ids", "bucket_counts", "candidate_ids"), "*i32"),
        **dict.fromkeys(("parameters", "plans"), "*fp64"),
        **dict.fromkeys(("row_indices", "positions", "out"), "*i64"),
        **dict.fromkeys(("logits_stride", "vocab_size", "num_chunks"), "i32"),
        "CHUNKS": "constexpr",
    }
    by_chunk = (_largest_kernel, bucket_kernel, copy_kernel, _draw_kernel)
    for kernel, num_warps in (*((kernel, CHUNK_WARPS) for kernel in by_chunk), (_finish_kernel, ROW_WARPS)):
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
                    aligned=frozenset(pointers | ({"logits_stride", "vocab_size"} if is_aligned else set())),
                )
