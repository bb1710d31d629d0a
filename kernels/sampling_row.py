"""What the sampling kernels read of a row, for use inside them."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.row_parameters import Column

COLUMNS = tl.constexpr(len(Column))
TEMPERATURE = tl.constexpr(Column.TEMPERATURE.value)
TOP_K = tl.constexpr(Column.TOP_K.value)
TOP_P = tl.constexpr(Column.TOP_P.value)
MIN_P = tl.constexpr(Column.MIN_P.value)
SEED_LOW = tl.constexpr(Column.SEED_LOW.value)
SEED_HIGH = tl.constexpr(Column.SEED_HIGH.value)
INDEX = tl.constexpr(Column.INDEX.value)

NO_ID = tl.constexpr(2**31 - 1)
LARGEST_FLOAT = tl.constexpr(3.4028234663852886e38)


@triton.jit
def parameters_of(parameters, row_indices, row):
    """Pointer to the row's own parameters, `own` below."""
    return parameters + tl.load(row_indices + row) * COLUMNS


@triton.jit
def load_logits(logits, logits_stride, row, token_ids, vocab_size):
    """The row's logits of some tokens; −inf past the vocabulary."""
    return tl.load(logits + row * logits_stride + token_ids, token_ids < vocab_size, other=float("-inf"))


@triton.jit
def is_drawn(own):
    """Whether the row is not greedy. own: pointer to its parameters."""
    return tl.load(own + TEMPERATURE) > 0


@triton.jit
def has_rank(own, vocab_size):
    """Whether top-k is on."""
    top_k = tl.load(own + TOP_K)
    return (top_k > 0) & (top_k < vocab_size)


@triton.jit
def has_border(own, vocab_size):
    """Whether top-k or top-p is on."""
    return has_rank(own, vocab_size) | (tl.load(own + TOP_P) < 1.0)


@triton.jit
def load_divisor(own):
    """The temperature, float32, kept above 0 where it would be rounded to it."""
    return tl.maximum(tl.load(own + TEMPERATURE).to(tl.float32), 1e-30)


@triton.jit
def load_seed(own):
    """int64, the seed's bits as two's complement."""
    return (tl.load(own + SEED_HIGH).to(tl.int64) << 32) | tl.load(own + SEED_LOW).to(tl.int64)


@triton.jit
def load_index(own):
    """int64."""
    return tl.load(own + INDEX).to(tl.int64)


@triton.jit
def load_min_p(own):
    """float32."""
    return tl.load(own + MIN_P).to(tl.float32)


@triton.jit
def load_largest(chunk_largest, num_chunks, CHUNKS: tl.constexpr):
    """The row's largest logit, made finite. chunk_largest: pointer to its chunks' largest."""
    chunks = tl.arange(0, CHUNKS)
    largest = tl.max(tl.load(chunk_largest + chunks, chunks < num_chunks, other=float("-inf")))
    return tl.minimum(tl.maximum(largest, -LARGEST_FLOAT), LARGEST_FLOAT)


@triton.jit
def distances(logits, largest, divisor):
    """|(logit − largest) / temperature|, float32; a token's weight is exp of its negative. NaN counts as −inf."""
    below = tl.minimum(tl.where(logits == logits, logits, float("-inf")) - largest, 0.0)
    return tl.abs(tl.div_rn(below, divisor))
