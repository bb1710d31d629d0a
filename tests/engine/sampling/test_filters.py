"""The filters against a slow gold in plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling import filters
from engine.sampling.filters import apply_filters
from engine.sampling_params import SamplingParams

BORDER = 1e-6
"""A share this near to top_p may fall on either side: the sums are of float32 numbers."""


def _kept(scaled: torch.Tensor, *params: SamplingParams) -> list[list[int]]:
    before = scaled.clone()
    weights = scaled.exp()
    full = weights.clone()
    apply_filters(scaled, weights, params)
    assert torch.equal(scaled, before)
    assert bool(((weights == full) | (weights == 0.0)).all())
    return [row.nonzero().squeeze(1).tolist() for row in weights]


def _gold(scaled: list[float], params: SamplingParams, slack: float = 0.0) -> list[int]:
    """Tokens that stay, lowest id first."""
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    mass = [math.exp(scaled[i]) for i in order]
    if params.top_p < 1.0:
        total, running = math.fsum(mass), 0.0
        for count, m in enumerate(mass, 1):
            running += m
            if running / total >= params.top_p + slack:
                order = order[:count]
                break
    floor = float(torch.tensor(params.min_p)) * (1 - slack)  # in float32, as the weights are
    return sorted(i for i in order if math.exp(scaled[i]) >= floor and scaled[i] > -math.inf)


def _assert_gold(scaled: torch.Tensor, params: list[SamplingParams]) -> None:
    for row, p, kept in zip(scaled.tolist(), params, _kept(scaled, *params), strict=True):
        assert kept in (_gold(row, p), _gold(row, p, -BORDER), _gold(row, p, BORDER)), (row, p, kept)


def _scaled(rows: list[list[float]]) -> torch.Tensor:
    logits = torch.tensor(rows, dtype=torch.float32)
    return logits - logits.amax(-1, keepdim=True)


_params = st.builds(
    SamplingParams,
    top_k=st.one_of(st.just(0), st.integers(1, 50)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.9999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.data())
def test_equal_to_gold(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 40))
    # A coarse grid makes ties, also at the borders; -inf stands for masked tokens.
    logit = st.one_of(st.integers(-4, 4).map(float), st.floats(-8.0, 8.0, width=32), st.just(-math.inf))
    row = st.tuples(st.lists(logit, min_size=vocab - 1, max_size=vocab - 1), st.integers(-4, 4)).map(
        lambda parts: [*parts[0], float(parts[1])]
    )
    rows = data.draw(st.lists(row, min_size=1, max_size=5))
    params = data.draw(st.lists(_params, min_size=len(rows), max_size=len(rows)))
    _assert_gold(_scaled(rows), params)


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("decimals", [1, 7])
def test_equal_to_gold_over_a_vocabulary_larger_than_the_shortlist(spread: float, decimals: int) -> None:
    logits = torch.randn(9, 3000, generator=torch.Generator().manual_seed(5)) * spread
    params = [
        SamplingParams(top_k=5),
        SamplingParams(top_p=0.9),
        SamplingParams(top_k=filters.SHORTLIST - 1),
        SamplingParams(top_k=filters.SHORTLIST),
        SamplingParams(top_k=2500, top_p=0.95),
        SamplingParams(top_p=0.999, min_p=0.02),
        SamplingParams(),
        SamplingParams(top_k=3001),
        SamplingParams(top_k=2999),
    ]
    _assert_gold(_scaled(logits.round(decimals=decimals).tolist()), params)


@pytest.mark.parametrize(
    ("top_p", "count"),
    [(0.05, 1), (0.1, 1), (0.100001, 2), (0.3, 3), (0.5, 5), (0.7, 7), (0.899999, 9), (0.9, 9), (0.91, 10), (1.0, 10)],
)
def test_top_p_keeps_the_smallest_set_at_the_border(top_p: float, count: int) -> None:
    # Ten equal tokens: k of them hold exactly k/10, and among equals the lowest ids stay.
    assert _kept(torch.zeros(1, 10), SamplingParams(top_p=top_p)) == [list(range(count))]


def test_top_p_within_the_shortlist_and_beyond_agree_at_the_border() -> None:
    n = 4 * filters.SHORTLIST
    for count in (1, filters.SHORTLIST - 1, filters.SHORTLIST, filters.SHORTLIST + 1, n - 1, n):
        assert _kept(torch.zeros(1, n), SamplingParams(top_p=count / n)) == [list(range(count))]


def test_top_p_is_a_share_of_what_top_k_kept() -> None:
    scaled = torch.tensor([[0.5, 0.3, 0.1, 0.1]]).log()
    scaled -= scaled.amax()
    # Of the first two, 0.625 and 0.375: the first alone holds 0.6, which it would not of all four.
    assert _kept(scaled, SamplingParams(top_k=2, top_p=0.6)) == [[0]]
    assert _kept(scaled, SamplingParams(top_p=0.6)) == [[0, 1]]


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 6, 7, 1000])
def test_top_k_ties_go_to_the_lowest_ids(top_k: int) -> None:
    scaled = torch.tensor([[-1.0, 0.0, -1.0, -1.0, -2.0, 0.0]])
    order = [1, 5, 0, 2, 3, 4]
    assert _kept(scaled, SamplingParams(top_k=top_k)) == [sorted(order[:top_k])]


def test_min_p_keeps_the_border_and_all_of_the_likeliest() -> None:
    scaled = torch.tensor([[0.0, math.log(0.5), math.log(0.25), 0.0]])
    weights = torch.tensor([[1.0, 0.5, 0.25, 1.0]])
    for min_p, expected in [(0.25, [0, 1, 2, 3]), (0.26, [0, 1, 3]), (0.5, [0, 1, 3]), (0.51, [0, 3]), (1.0, [0, 3])]:
        changed = weights.clone()
        apply_filters(scaled, changed, [SamplingParams(min_p=min_p)])
        assert changed[0].nonzero().squeeze(1).tolist() == expected


@pytest.mark.parametrize(
    "strict", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1, "top_p": 1e-9, "min_p": 1.0}], ids=str
)
def test_at_least_one_token_stays(strict: dict[str, Any]) -> None:
    scaled = _scaled(torch.randn(1, 2000, generator=torch.Generator().manual_seed(0)).tolist())
    assert _kept(scaled, SamplingParams(**strict)) == [[int(scaled.argmax())]]


def test_off_keeps_everything() -> None:
    scaled = _scaled([[0.0, -3.0, 2.0, -90.0]])
    params = SamplingParams(top_k=0, top_p=1.0, min_p=0.0)
    assert not filters.is_filtered(params)
    assert _kept(scaled, params) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("vocab", [10, 3000])
@pytest.mark.parametrize("fill", [-math.inf, math.nan])
def test_rows_with_nothing_to_keep_do_not_raise(vocab: int, fill: float) -> None:
    scaled = torch.zeros(2, vocab)
    scaled[0] = fill
    weights = scaled.exp()
    apply_filters(scaled, weights, [SamplingParams(top_k=3, top_p=0.9, min_p=0.1), SamplingParams(top_k=3, top_p=0.9)])
    assert weights[1].nonzero().squeeze(1).tolist() == [0, 1, 2]
    apply_filters(scaled, weights, [SamplingParams(top_p=0.9), SamplingParams(top_p=0.1)])


def test_rows_do_not_depend_on_each_other() -> None:
    scaled = _scaled((torch.randn(6, 3000, generator=torch.Generator().manual_seed(8)).round(decimals=1)).tolist())
    params = [
        SamplingParams(top_k=1500),
        SamplingParams(top_p=0.6),
        SamplingParams(top_k=7),
        SamplingParams(top_k=900, top_p=0.99),
        SamplingParams(min_p=0.3),
        SamplingParams(top_p=0.01),
    ]
    together = _kept(scaled, *params)
    assert [_kept(scaled[i : i + 1], params[i])[0] for i in range(6)] == together
    assert _kept(scaled.flip(0), *params[::-1]) == together[::-1]
