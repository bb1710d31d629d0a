"""Known answers and statistics of the counter-based generator."""

from __future__ import annotations

import numpy as np
import pytest

from engine.sampling.random import philox, uniforms


def _words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([v], dtype=np.uint64) for v in values)


# The known answers of Philox4x32-10 that its authors publish with their library Random123.
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    assert tuple(int(w[0]) for w in philox(_words(*counter), _words(*key))) == answer


def test_uniforms_take_the_first_two_words_as_53_bits() -> None:
    assert uniforms([0], [0], [0])[0] == ((0x6627E8D5 << 21) | (0xE169C58D >> 11)) / 2**53


def test_rows_do_not_depend_on_each_other() -> None:
    seeds, indices, positions = [5, -1, 2**63 - 1, -(2**63)], [0, 3, 127, 1], [0, 9, 2**33, 131072]
    together = uniforms(seeds, indices, positions)
    alone = [uniforms([s], [i], [p])[0] for s, i, p in zip(seeds, indices, positions, strict=True)]
    assert together.tolist() == alone
    assert uniforms(seeds[::-1], indices[::-1], positions[::-1]).tolist() == alone[::-1]


def test_every_argument_counts() -> None:
    base = (7, 1, 20)
    others = [(8, 1, 20), (7 + 2**32, 1, 20), (-7, 1, 20), (7, 2, 20), (7, 1, 21), (7, 1, 20 + 2**32), (1, 7, 20)]
    values = uniforms(*(list(column) for column in zip(base, *others, strict=True)))
    assert len(set(values.tolist())) == 1 + len(others)


@pytest.mark.parametrize("moving", ["seed", "index", "position"])
def test_streams_are_uniform_and_uncorrelated(moving: str) -> None:
    n, buckets = 20_000, 50
    run, zeros = list(range(n)), [0] * n
    values = uniforms(*(run if name == moving else zeros for name in ("seed", "index", "position")))
    assert values.min() >= 0.0
    assert values.max() < 1.0
    counts = np.histogram(values, bins=buckets, range=(0.0, 1.0))[0]
    chi_square = float(((counts - n / buckets) ** 2 / (n / buckets)).sum())
    assert chi_square < 85.4  # 99.9 % quantile at 49 degrees of freedom
    neighbours = float(np.corrcoef(values[:-1], values[1:])[0, 1])
    assert abs(neighbours) < 4 / n**0.5
