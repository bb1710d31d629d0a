"""Random numbers as a pure function of (request seed, sequence index, position)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MASK64 = 2**64 - 1

Words = tuple[npt.NDArray[np.uint64], ...]
"""Four arrays (or two, for a key) of 32-bit words, each held in uint64 so that products do not overflow."""


def philox(counter: Words, key: Words) -> Words:
    """Philox4x32-10 over arrays: four 32-bit counter words and two key words to four random 32-bit words.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.3.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _HALF) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0 = (k0 + _KEY_STEPS[0]) & _LOW
        k1 = (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(seeds: Sequence[int], indices: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) a row, with 53 random bits. All arguments have one entry a row; float64 (rows).

    seeds: any integers, taken modulo 2**64. indices: of the sequence in its request, below 2**32. positions: of the
    token to draw, below 2**64.

    NOTE: the seed is the key and (position, index) the counter, so that two draws share their bits only if all three
    agree. Nothing is carried from draw to draw: preemption, batching and chunking cannot shift a stream.
    """
    key = _split([seed & _MASK64 for seed in seeds])
    low, high = _split(positions)
    index = np.array(indices, dtype=np.uint64)
    word0, word1, _, _ = philox((low, high, index, np.zeros_like(index)), key)
    bits = (word0 << np.uint64(21)) | (word1 >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53


def _split(values: Sequence[int]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The low and the high 32 bits of each value."""
    words = np.array(values, dtype=np.uint64)
    return words & _LOW, words >> _HALF
