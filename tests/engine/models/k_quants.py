"""Blocks of llama.cpp's K-quants made from random bits, and what they stand for, spelled out value by value.

Layouts: block_q4_K, block_q5_K and block_q6_K in ggml's ggml-common.h: 256 values a block.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np

BLOCK = 256


def _half(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    return np.array([rng.uniform(low, high)], dtype="<f2").view(np.uint8)


def _bits(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 256, count, dtype=np.uint8)


def random_block(kind: str, rng: np.random.Generator) -> np.ndarray:
    """The bytes of one block whose values have a size that suits a projection's weights."""
    if kind == "Q6_K":
        scales = rng.integers(-64, 64, 16, dtype=np.int8).view(np.uint8)
        return np.concatenate([_bits(rng, 128), _bits(rng, 64), scales, _half(rng, 5e-5, 1e-4)])
    head = [_half(rng, 1e-4, 3e-4), _half(rng, 1e-3, 2e-3), _bits(rng, 12)]
    high_bits = [_bits(rng, 32)] if kind == "Q5_K" else []
    return np.concatenate([*head, *high_bits, _bits(rng, 128)])


def _scale_and_min(scales: np.ndarray, index: int) -> tuple[int, int]:
    """The six-bit scale and minimum of sub-block `index`, packed into 12 bytes."""
    low = [int(b) for b in scales]
    if index < 4:
        return low[index] & 63, low[index + 4] & 63
    return (
        (low[index + 4] & 15) | ((low[index - 4] >> 6) << 4),
        (low[index + 4] >> 4) | ((low[index] >> 6) << 4),
    )


def _q4_or_q5(block: np.ndarray, high_bits: np.ndarray | None, low_bits: np.ndarray) -> list[float]:
    d, dmin = (float(x) for x in block[:4].view("<f2"))
    values = []
    for index in range(BLOCK):
        sub_block, lane = divmod(index, 32)
        byte = int(low_bits[(sub_block // 2) * 32 + lane])
        number = byte >> 4 if sub_block % 2 else byte & 15
        if high_bits is not None:
            number += 16 * (int(high_bits[lane]) >> sub_block & 1)
        scale, minimum = _scale_and_min(block[4:16], sub_block)
        values.append(d * scale * number - dmin * minimum)
    return values


def _q6(block: np.ndarray) -> list[float]:
    low, high, scales = block[:128], block[128:192], block[192:208].view(np.int8)
    d = float(block[208:210].view("<f2")[0])
    values = []
    for index in range(BLOCK):
        half, place = divmod(index, 128)
        quarter, lane = divmod(place, 32)
        byte = int(low[half * 64 + (quarter % 2) * 32 + lane])
        number = (byte >> 4 if quarter >= 2 else byte & 15) | (int(high[half * 32 + lane]) >> 2 * quarter & 3) << 4
        values.append(d * int(scales[index // 16]) * (number - 32))
    return values


def block_values(kind: str, block: np.ndarray) -> list[float]:
    """The 256 values of one block."""
    if kind == "Q4_K":
        return _q4_or_q5(block, None, block[16:144])
    if kind == "Q5_K":
        return _q4_or_q5(block, block[16:48], block[48:176])
    return _q6(block)


def random_quantizer(kind: str, seed: int = 0) -> Callable[[np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType]]:
    """A "quantiser" that takes only the shape of its input and fills it with random blocks."""
    rng = np.random.default_rng(seed)

    def quantize(values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        rows, columns = values.shape
        blocks = [[random_block(kind, rng) for _ in range(columns // BLOCK)] for _ in range(rows)]
        data = np.array([np.concatenate(row) for row in blocks])
        return data, gguf.GGMLQuantizationType[kind]

    return quantize
