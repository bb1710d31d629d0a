"""The search for the border of what top-k and top-p keep, instead of a sort, and the draw within it, inside kernels.

A row is searched in its candidates, the tokens that `kernels.sampling_candidates` has copied, or where these were too
many (`is_short` is False) as a whole. The bits of a distance, taken as an integer, order as distances do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.noise import race_times, words_of
from kernels.sampling_row import (
    NO_ID,
    TOP_K,
    TOP_P,
    distances,
    has_rank,
    load_index,
    load_min_p,
    load_seed,
)

TILE = tl.constexpr(4096)
"""Tokens at a time: all candidates at once."""


@triton.jit
def find_kept(own, values, near, near_ids, is_short, count, vocab_size, largest, divisor, plan):
    """(bits of the furthest distance that top-k and top-p keep, the highest id kept at just that distance)."""
    top_p = tl.load(own + TOP_P)
    total = tl.load(plan + 1)
    low, low_count, low_mass = _load_bound(plan + 2)
    high, high_count, high_mass = _load_bound(plan + 5)
    ties = 0
    kept_ties = 0
    if has_rank(own, vocab_size):
        rank = tl.load(own + TOP_K).to(tl.int32)
        low, low_count, low_mass, high, high_count, high_mass = _find_border(
            values, near, is_short, count, largest, divisor, rank, top_p, total,
            low, low_count, low_mass, high, high_count, high_mass, BY_MASS=False,
        )  # fmt: skip
        ties = high_count - low_count
        kept_ties = rank - low_count
        if kept_ties < ties:
            weight = tl.exp(-high.to(tl.float32, bitcast=True)).to(tl.float64)
            high_mass = low_mass + kept_ties * weight
        total = tl.maximum(high_mass, 1.0)
        low = high * 0 - 1
        low_count = high * 0
        low_mass = high_mass * 0.0
    if top_p < 1.0:
        rank_border = high
        low, low_count, low_mass, high, high_count, high_mass = _find_border(
            values, near, is_short, count, largest, divisor, 0, top_p, total,
            low, low_count, low_mass, high, high_count, high_mass, BY_MASS=True,
        )  # fmt: skip
        ties = high_count - low_count
        needed = _needed_ties(low_mass, high, ties, top_p, total)
        kept_ties = tl.where((high == rank_border) & (kept_ties > 0), tl.minimum(needed, kept_ties), needed)
    last_tie = NO_ID
    if kept_ties < ties:
        last_tie = _find_tie(values, near, near_ids, is_short, count, largest, divisor, high, kept_ties)
    return high, last_tie


@triton.jit
def _load_bound(plan):
    """(bits of a distance, −1 where it is negative; tokens at or below it, int32; their weight, float64)."""
    distance = tl.load(plan).to(tl.float32)
    bits = tl.where(distance < 0.0, -1, distance.to(tl.int32, bitcast=True))
    return bits, tl.load(plan + 1).to(tl.int32), tl.load(plan + 2)


@triton.jit
def draw_kept(own, values, near, near_ids, is_short, count, largest, divisor, border, last_tie, position):
    """The race among the tokens within the border that min-p keeps too. Returns int32; 0 for a row of −inf."""
    min_p = load_min_p(own)
    seed = load_seed(own)
    index = load_index(own)
    num_near = tl.where(is_short, count, 0)
    least = float("inf")
    least_id = 0
    for start in range(0, count, TILE):
        found = _load_distances(values, near, is_short, start, count, largest, divisor)
        places = start + tl.arange(0, TILE)
        token_ids = tl.where(is_short, tl.load(near_ids + places, places < num_near, other=NO_ID), places)
        bits = found.to(tl.int32, bitcast=True)
        is_kept = (bits < border) | ((bits == border) & (token_ids <= last_tie))
        is_kept = is_kept & (tl.exp(-found) >= min_p)
        times = tl.where(is_kept, race_times(words_of(seed, index, position, token_ids), found), float("inf"))
        time = tl.min(times)
        token_id = tl.min(tl.where(times == time, token_ids, NO_ID))
        least_id = tl.where(time < least, token_id, least_id)
        least = tl.minimum(time, least)
    return least_id


@triton.jit
def _find_border(
    row,
    candidates,
    is_short,
    count,
    largest,
    divisor,
    rank,
    share,
    total,
    low,
    low_count,
    low_mass,
    high,
    high_count,
    high_mass,
    BY_MASS: tl.constexpr,
):
    """The lowest distance at or below which there are `rank` tokens, or (BY_MASS) `share` of the `total` mass.

    low, high: int32, bits of a distance that does not suffice (−1: nothing lies there), and of one that does. *_count:
    int32, tokens at or below it; *_mass: float64, their weight. Returns the six, narrowed, so that one token, or
    several of distance `high`, lie in between.

    NOTE: four pivots a pass: three cut the interval of distances evenly (or double the lower end, where the upper one
    is inf), which is quick where logits are spread out; the middle of the interval of bits bounds the passes by 31
    whatever the logits. Masses are added in the same order for every pivot and pass, so that they grow with the pivot
    even as they are rounded.
    """
    steps = tl.arange(0, 4)
    while (high - low > 1) & (high_count - low_count > 1):
        near_end = tl.where(low < 0, 0.0, low.to(tl.float32, bitcast=True))
        far_end = high.to(tl.float32, bitcast=True)
        is_open = far_end == float("inf")
        step = (tl.where(is_open, near_end, far_end) - near_end) * 0.25
        ends = tl.where(is_open, near_end * (1 << steps).to(tl.float32), near_end + step * steps.to(tl.float32))
        inside = tl.minimum(tl.maximum(ends.to(tl.int32, bitcast=True), low + 1), high - 1)
        pivots = tl.where(steps == 0, low + (high - low) // 2, inside)
        counts = tl.zeros((4, TILE), dtype=tl.int32)
        masses = tl.zeros((4, TILE), dtype=tl.float32)
        for start in range(0, count, TILE):
            found = _load_distances(row, candidates, is_short, start, count, largest, divisor)[None, :]
            # NOTE: places past `count` have a distance of inf, which no pivot reaches: pivots lie below `high`.
            is_within = found.to(tl.int32, bitcast=True) <= pivots[:, None]
            counts += is_within.to(tl.int32)
            masses += tl.where(is_within, tl.exp(-found), 0.0)
        pivot_counts = tl.sum(counts, axis=1)
        pivot_masses = tl.sum(masses, axis=1).to(tl.float64)
        suffices = pivot_masses / total >= share if BY_MASS else pivot_counts >= rank
        high = tl.min(tl.where(suffices, pivots, high))
        high_count = tl.min(tl.where(suffices, pivot_counts, high_count))
        high_mass = tl.min(tl.where(suffices, pivot_masses, high_mass))
        low = tl.max(tl.where(suffices, low, pivots))
        low_count = tl.max(tl.where(suffices, low_count, pivot_counts))
        low_mass = tl.max(tl.where(suffices, low_mass, pivot_masses))
    return low, low_count, low_mass, high, high_count, high_mass


@triton.jit
def _needed_ties(low_mass, high, ties, share, total):
    """How many of the equal tokens of distance `high` bring the mass to `share` of `total`. int32, 1 to `ties`.

    low_mass, share, total: float64. NOTE: quotients, since with k equal tokens of n the share is then the double
    nearest to k/n, as the parameter is.
    """
    weight = tl.exp(-high.to(tl.float32, bitcast=True)).to(tl.float64)
    missing = share * total - low_mass
    # NOTE: bounded before it is made an integer: beside a weight near 0 a rounded sum is as good as infinite.
    guess = tl.where(weight * ties > missing, missing / tl.where(weight > 0.0, weight, 1.0), ties.to(tl.float64))
    first = tl.minimum(tl.maximum(guess, 1.0), ties.to(tl.float64)).to(tl.int32)
    is_enough = (low_mass + first * weight) / total >= share
    return tl.minimum(tl.where(is_enough, first, first + 1), ties)


@triton.jit
def _find_tie(values, near, near_ids, is_short, count, largest, divisor, border, number):
    """The id of the `number`-th token, from 1, of those whose distance has the bits `border`."""
    seen = 0
    token_id = -1
    for start in range(0, count, TILE):
        found = _load_distances(values, near, is_short, start, count, largest, divisor)
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
def _load_distances(row, candidates, is_short, start, count, largest, divisor):
    """Distances of places `start` to `start + TILE`; inf past `count`.

    row: the row's logits. candidates: distances of a part of them, read instead where `is_short`.
    """
    places = start + tl.arange(0, TILE)
    if is_short:
        found = tl.load(candidates + places, places < count, other=float("inf"))
    else:
        found = distances(tl.load(row + places, places < count, other=float("-inf")), largest, divisor)
    return found
