"""The border of the tokens that top-k and top-p keep, by search instead of a sort, for use inside kernels.

A token's distance is |(logit − largest) / temperature|, so the likeliest has 0 and its weight is exp(−distance). The
bits of a distance, taken as an integer, order as distances do.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def distances(logits, largest, temperature):
    """float32, at least 0. NaN counts as −inf. largest: finite."""
    below = tl.minimum(tl.where(logits == logits, logits, float("-inf")) - largest, 0.0)
    return tl.abs(tl.div_rn(below, temperature))


@triton.jit
def load_distances(row, candidates, is_short, start, count, largest, temperature, TILE: tl.constexpr):
    """Distances of places `start` to `start + TILE`; inf past `count`.

    row: the row's logits. candidates: distances of a part of them, read instead where `is_short`.
    """
    places = start + tl.arange(0, TILE)
    if is_short:
        found = tl.load(candidates + places, places < count, other=float("inf"))
    else:
        found = distances(tl.load(row + places, places < count, other=float("-inf")), largest, temperature)
    return found


@triton.jit
def _narrow(
    pivot,
    counts,
    masses,
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
    """One end of the interval moves to the pivot, unless it is there or past it already."""
    count = tl.sum(counts)
    mass = tl.sum(masses).to(tl.float64)
    suffices = mass / total >= share if BY_MASS else count >= rank
    lowers = suffices & (pivot < high)
    raises = (suffices == 0) & (pivot > low)
    high = tl.where(lowers, pivot, high)
    high_count = tl.where(lowers, count, high_count)
    high_mass = tl.where(lowers, mass, high_mass)
    low = tl.where(raises, pivot, low)
    low_count = tl.where(raises, count, low_count)
    low_mass = tl.where(raises, mass, low_mass)
    return low, low_count, low_mass, high, high_count, high_mass


@triton.jit
def find_border(
    row,
    candidates,
    is_short,
    count,
    largest,
    temperature,
    rank,
    share,
    total,
    high,
    high_count,
    high_mass,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The lowest distance at or below which there are `rank` tokens, or (BY_MASS) `share` of the `total` mass.

    high: int32, bits of a distance that suffices; high_count: int32, tokens at or below it; high_mass: float64, their
    weight. Returns (low, low_count, low_mass, high, high_count, high_mass), `high` lowered, and `low` one that does not
    suffice (−1: nothing lies there), so that one token, or several of distance `high`, lie in between.

    NOTE: four pivots a pass: three cut the interval of distances evenly, which is quick where logits are spread out;
    the middle of the interval of bits bounds the passes by 31 whatever the logits. A pass adds the weights in the same
    order each time, so that masses grow with the pivot even as they are rounded.
    """
    low = high * 0 - 1
    low_count = high_count * 0
    low_mass = high_mass * 0.0
    while (high - low > 1) & (high_count - low_count > 1):
        from_ = tl.where(low < 0, 0.0, low.to(tl.float32, bitcast=True))
        step = (tl.minimum(high.to(tl.float32, bitcast=True), 3e38) - from_) * 0.25
        pivot0 = low + (high - low) // 2
        pivot1 = tl.minimum(tl.maximum((from_ + step).to(tl.int32, bitcast=True), low + 1), high - 1)
        pivot2 = tl.minimum(tl.maximum((from_ + step * 2).to(tl.int32, bitcast=True), low + 1), high - 1)
        pivot3 = tl.minimum(tl.maximum((from_ + step * 3).to(tl.int32, bitcast=True), low + 1), high - 1)
        counts0 = tl.zeros((TILE,), dtype=tl.int32)
        counts1 = tl.zeros((TILE,), dtype=tl.int32)
        counts2 = tl.zeros((TILE,), dtype=tl.int32)
        counts3 = tl.zeros((TILE,), dtype=tl.int32)
        masses0 = tl.zeros((TILE,), dtype=tl.float32)
        masses1 = tl.zeros((TILE,), dtype=tl.float32)
        masses2 = tl.zeros((TILE,), dtype=tl.float32)
        masses3 = tl.zeros((TILE,), dtype=tl.float32)
        for start in range(0, count, TILE):
            found = load_distances(row, candidates, is_short, start, count, largest, temperature, TILE)
            bits = found.to(tl.int32, bitcast=True)
            # NOTE: places past `count` have a distance of inf, which no pivot reaches: pivots lie below `high`.
            weights = tl.exp(-found)
            counts0 += (bits <= pivot0).to(tl.int32)
            counts1 += (bits <= pivot1).to(tl.int32)
            counts2 += (bits <= pivot2).to(tl.int32)
            counts3 += (bits <= pivot3).to(tl.int32)
            masses0 += tl.where(bits <= pivot0, weights, 0.0)
            masses1 += tl.where(bits <= pivot1, weights, 0.0)
            masses2 += tl.where(bits <= pivot2, weights, 0.0)
            masses3 += tl.where(bits <= pivot3, weights, 0.0)
        low, low_count, low_mass, high, high_count, high_mass = _narrow(
            pivot0, counts0, masses0, rank, share, total, low, low_count, low_mass, high, high_count, high_mass, BY_MASS
        )
        low, low_count, low_mass, high, high_count, high_mass = _narrow(
            pivot1, counts1, masses1, rank, share, total, low, low_count, low_mass, high, high_count, high_mass, BY_MASS
        )
        low, low_count, low_mass, high, high_count, high_mass = _narrow(
            pivot2, counts2, masses2, rank, share, total, low, low_count, low_mass, high, high_count, high_mass, BY_MASS
        )
        low, low_count, low_mass, high, high_count, high_mass = _narrow(
            pivot3, counts3, masses3, rank, share, total, low, low_count, low_mass, high, high_count, high_mass, BY_MASS
        )
    return low, low_count, low_mass, high, high_count, high_mass


@triton.jit
def needed_ties(low_mass, high, ties, share, total):
    """How many of the equal tokens of distance `high` bring the mass to `share` of `total`. int32, 1 to `ties`.

    low_mass, share, total: float64. NOTE: quotients, since with k equal tokens of n the share is then the double
    nearest to k/n, as the parameter is.
    """
    weight = tl.exp(-high.to(tl.float32, bitcast=True)).to(tl.float64)
    missing = share * total - low_mass
    guess = tl.where(weight * ties > missing, missing / tl.where(weight > 0.0, weight, 1.0), ties * 1.0).to(tl.int32)
    first = tl.minimum(tl.maximum(guess, 1), ties)
    one_less = (low_mass + (first - 1) * weight) / total >= share
    enough = (low_mass + first * weight) / total >= share
    needed = tl.where(one_less, first - 1, tl.where(enough, first, first + 1))
    return tl.minimum(tl.maximum(needed, 1), ties)
