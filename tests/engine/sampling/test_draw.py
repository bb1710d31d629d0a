from __future__ import annotations

import pytest
import torch

from engine.sampling.draw import ChunkSums


@pytest.mark.parametrize("vocab", [1, 2, 127, 128, 129, 1000, 1024])
def test_inverse_of_the_cumulative_distribution(vocab: int) -> None:
    # Integer weights, so that every sum is exact and each token owns a known interval.
    weights = torch.randint(0, 4, (3, vocab), generator=torch.Generator().manual_seed(vocab)).float()
    weights[:, vocab // 2] = 2.0
    for row in weights:
        total = int(row.sum())
        expected = [i for i, w in enumerate(row.tolist()) for _ in range(int(w))]
        uniforms = (torch.arange(total, dtype=torch.float64) + 0.5) / total
        drawn = ChunkSums(row.expand(total, -1).contiguous()).draw(uniforms)
        assert drawn.tolist() == expected


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("only", [0, 5, 130, 299])
def test_ends_of_the_interval_never_draw_a_token_of_weight_zero(uniform: float, only: int) -> None:
    weights = torch.zeros(1, 300)
    weights[0, only] = 0.3
    assert ChunkSums(weights).draw(torch.tensor([uniform], dtype=torch.float64)).tolist() == [only]


def test_quantile_past_the_sum_by_rounding_takes_the_last_token_with_weight() -> None:
    weights = torch.rand(1, 4096, generator=torch.Generator().manual_seed(0))
    weights[0, 4000:] = 0.0
    sums = ChunkSums(weights)
    # Rounded up to 1, which `uniforms` never returns: the target is then the total itself.
    assert sums.draw(torch.ones(1, dtype=torch.float64)).tolist() == [3999]


def test_nothing_to_draw_gives_token_0() -> None:
    weights = torch.zeros(2, 300)
    weights[1] = torch.nan
    assert ChunkSums(weights).draw(torch.full((2,), 0.5, dtype=torch.float64)).tolist() == [0, 0]


def test_totals() -> None:
    weights = torch.rand(4, 1000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ChunkSums(weights).totals, weights.double().sum(-1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("vocab", [37, 129, 16385, 50257])
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_do_not_depend_on_the_other_rows(vocab: int, threads: int) -> None:
    torch.set_num_threads(threads)
    weights = torch.rand(5, vocab, generator=torch.Generator().manual_seed(vocab))
    together = ChunkSums(weights).sums
    for row in range(5):
        assert torch.equal(ChunkSums(weights[row : row + 1].clone()).sums, together[row : row + 1])
