"""`kernels.noise` against its torch twin and numpy's exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from engine.sampling.random import philox as philox_of_cpu
from kernels.noise import CHUNK, LANES, exponential, noise_words, race_times, words_of
from kernels.reference.noise import exponential as reference_exponential
from kernels.reference.noise import exponential_noise, philox

RANDOM123 = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Known answers for philox4x32-10, from the authors' library (Random123, kat_vectors)."""


@triton.jit
def _noise_kernel(seed, index, position, out, by_id, LANES: tl.constexpr, CHUNK: tl.constexpr):
    """out: the noise of chunk 1; by_id: the words of its ids, asked for one by one."""
    lanes = tl.arange(0, LANES)
    words = noise_words(tl.load(seed), tl.load(index), tl.load(position), LANES + lanes)
    for part in tl.static_range(CHUNK // LANES):
        tl.store(out + part * LANES + lanes, exponential(words[part]))
    ids = CHUNK + tl.arange(0, CHUNK)
    tl.store(by_id + ids - CHUNK, words_of(tl.load(seed), tl.load(index), tl.load(position), ids).to(tl.int64))


@triton.jit
def _times_kernel(words, found, out, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out + places, race_times(tl.load(words + places).to(tl.uint32), tl.load(found + places)))


def _one(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int64)


@pytest.mark.parametrize(("counter", "key", "expected"), RANDOM123)
def test_philox_gives_the_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    c0, c1, c2, c3 = (_one(word) for word in counter)
    words = philox((c0, c1, c2, c3), (_one(key[0]), _one(key[1])))
    assert tuple(int(word) for word in words) == expected


@pytest.mark.parametrize(
    ("seed", "index", "position"), [(0, 0, 0), (7, 2, 513), (-(2**63), 127, 2**33 + 5), (2**63 - 1, 2**32 - 1, 1)]
)
def test_kernel_equals_twin_and_the_cpu_samplers_philox(seed: int, index: int, position: int) -> None:
    size, lanes = CHUNK.value, LANES.value
    out = torch.full((size,), torch.nan)
    words = torch.full((size,), -1, dtype=torch.int64)
    _noise_kernel[(1,)](_one(seed), _one(index), _one(position), out, words, LANES=lanes, CHUNK=size)

    def column(value: int) -> np.ndarray:
        return np.full(lanes, value & 0xFFFFFFFF, dtype=np.uint64)

    blocks = np.arange(lanes, 2 * lanes, dtype=np.uint64) + np.uint64(1)
    exact = philox_of_cpu(
        (column(position), column(position >> 32), column(index), blocks), (column(seed), column(seed >> 32))
    )
    assert words.tolist() == np.concatenate(exact).tolist()
    noise = exponential_noise(_one(seed), _one(index), _one(position), 2 * size)[0, size:]
    torch.testing.assert_close(out, noise, rtol=1e-6, atol=0.0)


def test_noise_keeps_its_relative_precision_near_0_and_ends_finite() -> None:
    words = torch.tensor([0, 1, 2, 1000, 2**28 - 1, 2**28, 2**28 + 1, 2**31, 2**32 - 129, 2**32 - 1])
    exact = -np.log1p(-((words.numpy().astype(np.longdouble) + 0.5) / 2**32))
    noise = reference_exponential(words)
    assert noise.tolist()[:8] == pytest.approx([float(value) for value in exact[:8]], rel=2e-6)
    assert noise.isfinite().all()
    assert (noise.diff() >= 0).all()


def test_race_times() -> None:
    words = torch.tensor([0, 2**32 - 1, 5, 5, 5, 5, 2**32 - 1, 5])
    found = torch.tensor([0.0, 0.0, 3.0, 80.0, 100.0, 3e38, 3e38, torch.inf])
    out = torch.full((8,), torch.nan)
    _times_kernel[(1,)](words, found, out, BLOCK=8)
    assert out[:3].tolist() == pytest.approx((reference_exponential(words) * found.exp())[:3].tolist(), rel=1e-5)
    assert out[:7].isfinite().all()
    assert out[3] == out[4] == out[5] > 0
    assert out[7] == torch.inf


def test_noise_is_exponential() -> None:
    noise = exponential_noise(torch.arange(40), torch.arange(40) % 3, torch.arange(40) * 7, 10_000).flatten().double()
    for moment, expected in enumerate((1.0, 2.0, 6.0), start=1):
        spread = float((noise**moment).std()) / len(noise) ** 0.5
        assert abs(float((noise**moment).mean()) - expected) < 4 * spread
    assert 0.0 < float(noise.min()) < 1e-4
    ordered = (1.0 - (-noise).exp()).sort().values
    ideal = (torch.arange(len(noise)) + 0.5) / len(noise)
    assert float((ordered - ideal).abs().max()) < 1.95 / len(noise) ** 0.5  # Kolmogorov and Smirnov, 99.9 %


def test_all_arguments_matter() -> None:
    base = exponential_noise(_one(1), _one(0), _one(9), 5000)[0]
    for other in ((2, 0, 9), (1, 1, 9), (1, 0, 10), (1 + 2**40, 0, 9), (1, 0, 9 + 2**40)):
        seed, index, position = (_one(value) for value in other)
        assert int((exponential_noise(seed, index, position, 5000)[0] == base).sum()) < 3
