"""How many segments, and their sum."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.attention_splits import MAX_SPLITS, choose_splits, reduce_splits
from kernels.reference import attention_splits as reference
from kernels.tiles import Device, Tile


class TestChoiceOfSplits:
    DEVICE = Device("hopper", 132)
    TILE = Tile(16, 64, 4, 4, 2)

    @pytest.mark.parametrize(
        ("batch", "max_keys", "splits"),
        [
            (1, 100, 1),  # too short for two segments
            (1, 1024, 8),  # segments of 128 keys
            (1, 32768, 32),  # 256 programs for 264 places
            (32, 4096, 1),  # the same without splits
            (48, 4096, 2),  # 384 leave half of their second wave idle, 768 do not
            (256, 4096, 1),
        ],
    )
    def test_decodes(self, batch: int, max_keys: int, splits: int) -> None:
        assert choose_splits(self.DEVICE, self.TILE, batch * 8, max_keys) == splits

    def test_a_single_program_of_very_many_keys(self) -> None:
        assert 120 <= choose_splits(self.DEVICE, self.TILE, 1, 1 << 20) <= MAX_SPLITS

    @pytest.mark.parametrize(
        ("num_query_blocks", "max_keys", "splits"),
        [
            (257, 8192, 1),  # a prompt of 8192
            (17, 512, 1),  # one of 512: 136 programs for 132 places
            (3, 100_000, 11),  # 64 tokens after a long prefix
        ],
    )
    def test_prefill(self, num_query_blocks: int, max_keys: int, splits: int) -> None:
        assert choose_splits(self.DEVICE, Tile(128, 64, 8, 3, 1), num_query_blocks * 8, max_keys) == splits

    def test_places_are_busy_with_long_sequences(self) -> None:
        for num_programs in range(8, 2000, 3):
            waves = num_programs * choose_splits(self.DEVICE, self.TILE, num_programs, 8192) / 264
            assert waves / math.ceil(waves) > 0.8


def partial_results(num_splits: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of 4 tokens and 3 heads, weights far apart; some segments, and all of one row's, have no keys and hold NaN."""
    generator = torch.Generator().manual_seed(0)
    partial_out = torch.randn(4, 3, num_splits, head_dim, generator=generator)
    partial_lse = 200 * torch.randn(4, 3, num_splits, generator=generator)
    empty = torch.rand(4, 3, num_splits, generator=generator) < 0.3
    empty[1, 1] = True
    partial_lse[empty] = -torch.inf
    partial_out[empty] = torch.nan
    return partial_out, partial_lse


@pytest.mark.parametrize("num_splits", [1, 5, 16, 17, 40, MAX_SPLITS])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_sum_of_segments(num_splits: int, head_dim: int) -> None:
    partial_out, partial_lse = partial_results(num_splits, head_dim)
    starts = torch.tensor([0, 2, 3], dtype=torch.int32)
    out, expected = torch.full((2, 4, 3, head_dim), torch.nan)
    reduce_splits(out, partial_out, partial_lse, starts, 2, num_splits)
    reference.reduce_splits(expected, partial_out, partial_lse, starts, 2, num_splits)
    torch.testing.assert_close(out[:3], expected[:3], rtol=0, atol=1e-6)
    assert (out[1, 1] == 0).all()
    assert out[3].isnan().all(), "a row of no sequence was written"


def test_an_output_of_other_strides_and_dtype() -> None:
    partial_out, partial_lse = partial_results(5, 64)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    out = torch.zeros(4, 5, 64, dtype=torch.float16)[:, 1:4]
    expected = torch.empty(4, 3, 64)
    reduce_splits(out, partial_out, partial_lse, starts, 1, 5)
    reference.reduce_splits(expected, partial_out, partial_lse, starts, 1, 5)
    torch.testing.assert_close(out.float(), expected, rtol=2e-3, atol=1e-6)


def test_the_twin_sums_up_to_one_softmax() -> None:
    """Segments of 10 keys, the last of 5 and one of none, against the softmax over all 25."""
    generator = torch.Generator().manual_seed(1)
    scores = 10 * torch.randn(2, 3, 25, generator=generator)
    values = torch.randn(2, 3, 25, 16, generator=generator)
    parts = [(scores[..., i : i + 10], values[..., i : i + 10, :]) for i in (0, 10, 20, 30)]
    partial_out = torch.stack([(part.softmax(-1)[..., None] * of).sum(2) for part, of in parts], 2)
    partial_lse = torch.stack([part.logsumexp(-1) for part, _ in parts], 2) / math.log(2)
    out = torch.empty(2, 3, 16)
    reference.reduce_splits(out, partial_out, partial_lse, torch.tensor([0, 2]), 1, 4)
    torch.testing.assert_close(out, (scores.softmax(-1)[..., None] * values).sum(2), rtol=0, atol=1e-6)
