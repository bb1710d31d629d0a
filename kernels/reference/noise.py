"""Plain-torch twin of `kernels.noise`."""

from __future__ import annotations

import torch

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LANES = 1024
_WORDS = 4


def exponential_noise(
    seeds: torch.Tensor, indices: torch.Tensor, positions: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    """float32 (R, vocab). seeds, indices, positions: int64 (R), the seed's bits as two's complement."""
    ids = torch.arange(vocab_size, device=seeds.device)
    chunk = _LANES * _WORDS
    blocks, block_of_id = torch.unique(ids // chunk * _LANES + ids % _LANES, return_inverse=True)
    blocks = blocks.expand(len(seeds), -1)

    def column(values: torch.Tensor) -> torch.Tensor:
        return (values & _LOW).unsqueeze(1).expand_as(blocks)

    counter = (column(positions), column(positions >> 32), column(indices), blocks + 1)
    words = torch.stack(philox(counter, (column(seeds), column(seeds >> 32))))
    return exponential(words[ids % chunk // _LANES, :, block_of_id].T)


def exponential(words: torch.Tensor) -> torch.Tensor:
    """Standard exponential noise, float32. words: int64 below 2³²."""
    v = (words.float() * 2.0**-32 + 2.0**-33).clamp_(max=1.0 - 2.0**-24)
    series = v * (1.0 + v * (1 / 2 + v * (1 / 3 + v * (1 / 4 + v * (1 / 5 + v * (1 / 6))))))
    return torch.where(v < 1 / 16, series, -(1.0 - v).log())


def philox(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox4x32-10. All words int64 below 2³². NOTE: products wrap to negative numbers, whose bits are right."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _LOW) ^ c1 ^ k0,
            product1 & _LOW,
            ((product0 >> 32) & _LOW) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0 = (k0 + _KEY_STEPS[0]) & _LOW
        k1 = (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3
