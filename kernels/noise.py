"""Exponential noise as a pure function of (seed, sequence index, position, token id), for use inside kernels.

The token with the least noise / weight is one drawn by its weight (an exponential race; the logarithm of it is
Gumbel-max, arXiv:1611.01144, section 2, at the price of another logarithm a token).

Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) has the seed as its
key and (position, index, 1 + block) as its counter. A block's four words serve four tokens LANES apart, so that a
program which holds a chunk of 4 · LANES neighbours computes each block once, with no shuffling among threads. Blocks
count from 1: 0 is the draw of the CPU's sampler.
"""

from __future__ import annotations

import triton
import triton.language as tl

LANES = tl.constexpr(1024)
CHUNK = tl.constexpr(4096)


@triton.jit
def noise_words(seed, index, position, blocks):
    """Four blocks of uint32. seed, position: int64; index: int64 below 2³². blocks: int32, chunk · LANES + lane."""
    word3 = (blocks + 1).to(tl.uint32)
    low = (position & 0xFFFFFFFF).to(tl.uint32) + word3 * 0
    high = (position >> 32).to(tl.uint32) + word3 * 0
    return tl.philox(seed, low, high, index.to(tl.uint32) + word3 * 0, word3)


@triton.jit
def exponential(words):
    """Standard exponential noise, float32, above 0, from uint32 words.

    −log(1 − v) with v = (word + ½) · 2⁻³². NOTE: the tokens drawn are those of the least noise, so its relative
    precision near 0 counts, where 1 − v has lost it: a series takes its place.
    """
    v = words.to(tl.float32) * 2.0**-32 + 2.0**-33
    v = tl.minimum(v, 1.0 - 2.0**-24)
    series = v * (1.0 + v * (1 / 2 + v * (1 / 3 + v * (1 / 4 + v * (1 / 5 + v * (1 / 6))))))
    return tl.where(v < 1 / 16, series, -tl.log(1.0 - v))


@triton.jit
def race_times(words, found):
    """noise / weight, float32, for weights exp(−found); inf where `found` is.

    NOTE: further than 80 the weight stays exp(−80), so that nothing overflows.
    """
    return tl.where(found < float("inf"), exponential(words) * tl.exp(tl.minimum(found, 80.0)), float("inf"))


@triton.jit
def words_of(seed, index, position, token_ids):
    """The words of any tokens, uint32. token_ids: int32."""
    within = token_ids % CHUNK
    blocks = (token_ids // CHUNK) * LANES + within % LANES
    word0, word1, word2, word3 = noise_words(seed, index, position, blocks)
    place = within // LANES
    return tl.where(place == 0, word0, tl.where(place == 1, word1, tl.where(place == 2, word2, word3)))
