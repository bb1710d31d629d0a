"""The columns of the table of sampling parameters."""

from __future__ import annotations

from enum import IntEnum


class Column(IntEnum):
    """A row of the table is one sequence's, float64 (len(Column)).

    NOTE: float64 holds each of them as it is: the 32-bit words of the seed and the index exactly, and `top_p` as the
    double that a share of k equal tokens of n is compared with.
    """

    TEMPERATURE = 0
    """0 is greedy."""
    TOP_K = 1
    """0 is off, as is the vocabulary's size and more. Below 2³¹."""
    TOP_P = 2
    """1 is off."""
    MIN_P = 3
    """0 is off."""
    SEED_LOW = 4
    SEED_HIGH = 5
    """The seed's words, each below 2³²."""
    INDEX = 6
    """Of the sequence in its request, below 2³²."""
    REPETITION = 7
    """1 is off."""
    FREQUENCY = 8
    PRESENCE = 9
    """0 is off."""


SEEN_IN_PROMPT = 1 << 30
"""Flag of an entry of the table of token counts; the bits below count generated tokens."""
