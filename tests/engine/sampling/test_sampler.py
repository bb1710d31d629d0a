from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine.sampling.filters import apply_filters
from engine.sampling.hooks import Target
from engine.sampling.row import SamplingRow
from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams
from tests.engine.sampling.rows import make_request, make_row

DRAWS = 20_000
Z_BOUND = 3.1
"""The 99.9 % quantile of the normal distribution."""


def _logits(rows: int, vocab: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def _sample_positions(logits: torch.Tensor, count: int, **arguments: Any) -> list[int]:
    """Tokens drawn from the same logits (vocab) at positions 1 to `count`, by 500 a call."""
    sampler = Sampler(len(logits), (0,))
    rows = [make_row(**arguments) for _ in range(500)]
    tokens: list[int] = []
    for start in range(1, count + 1, len(rows)):
        rows = rows[: count + 1 - start]
        for offset, row in enumerate(rows):
            row.request.token_ids = _Length(start + offset)  # only its length matters here
        tokens += sampler.sample(logits.expand(len(rows), -1), rows).token_ids
    return tokens


class _Length(list[int]):
    """Stands for a long list of tokens."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def __len__(self) -> int:
        return self._length


def _assert_distribution(tokens: Sequence[int], probabilities: Sequence[float]) -> None:
    """Chi-square test; every probability is 0 or large enough for it. The seeds are fixed, so it is deterministic."""
    counts = Counter(tokens)
    assert all(probabilities[i] > 0.0 for i in counts)
    expected = {i: p * len(tokens) for i, p in enumerate(probabilities) if p > 0.0}
    chi_square = sum((counts[i] - e) ** 2 / e for i, e in expected.items())
    freedom = len(expected) - 1
    # Wilson and Hilferty's normal approximation of the quantile.
    bound = freedom * (1 - 2 / (9 * freedom) + Z_BOUND * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < bound, (chi_square, bound)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.15},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_distribution(params: dict[str, Any]) -> None:
    logits = _logits(1, 40, seed=3, spread=1.0)[0]
    settings = SamplingParams(**params)
    scaled = (logits - logits.max()) / settings.temperature
    weights = scaled.exp().unsqueeze(0)
    apply_filters(scaled.unsqueeze(0), weights, [settings])
    probabilities = (weights[0] / weights.sum()).tolist()
    _assert_distribution(_sample_positions(logits, DRAWS, seed=11, **params), probabilities)


def test_distribution_over_a_vocabulary_of_many_chunks() -> None:
    logits = torch.full((1, 3000), -math.inf)
    places = list(range(5, 3000, 130))
    logits[0, places] = _logits(1, len(places), spread=0.7)[0]
    tokens = _sample_positions(logits[0], DRAWS, seed=1)
    _assert_distribution(tokens, logits[0].softmax(-1).tolist())


@pytest.mark.parametrize("moving", ["seed", "index"])
def test_distribution_over_seeds_and_indices(moving: str) -> None:
    logits = _logits(1, 12, spread=1.0)
    sampler = Sampler(12, ())
    rows = [make_row(**{moving: value}) for value in range(4000)]
    tokens = sampler.sample(logits.expand(len(rows), -1), rows).token_ids
    _assert_distribution(tokens, logits[0].softmax(-1).tolist())


def test_same_seed_and_position_reproducible_and_others_not() -> None:
    logits = _logits(1, 5000, spread=0.5)[0]
    run = _sample_positions(logits, 50, seed=4)
    assert _sample_positions(logits, 50, seed=4) == run
    for other in ({"seed": 5}, {"seed": 4, "index": 1}, {"seed": -4}):
        different = _sample_positions(logits, 50, **other)
        assert sum(a == b for a, b in zip(run, different, strict=True)) < 5
    assert len(set(run)) > 40


def test_greedy_takes_the_largest_and_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(4, 3000)
    logits[1, 2999] = 1.0
    logits[2, [17, 2000]] = 5.0
    logits[3] = -math.inf
    logits[3, 40] = -3e38
    for extra in ({}, {"presence_penalty": 0.0, "seed": 9}, {"logit_bias": {2: 0.0}}):
        rows = [make_row(temperature=0.0, **extra) for _ in range(4)]
        assert Sampler(3000, (0,)).sample(logits, rows).token_ids == [0, 2999, 17, 40]


def test_V11_copies_at_temperature_0_are_equal() -> None:
    rows = [make_row(temperature=0.0, index=i, seed=3, n=8, repetition_penalty=1.2, output=[7]) for i in range(8)]
    tokens = Sampler(500, (0,)).sample(_logits(1, 500).expand(8, -1), rows).token_ids
    assert len(set(tokens)) == 1


def test_all_greedy_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(50, (0,))
    logits = _logits(3, 50)

    def _refuse(*_: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr("engine.sampling.sampler._take", _refuse)
    rows = [make_row(temperature=0.0) for _ in range(3)]
    assert sampler.sample(logits, rows).token_ids == logits.argmax(-1).tolist()


def _mixed_rows() -> list[SamplingRow]:
    shapes: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"temperature": 0.7, "top_k": 5},
        {"top_p": 0.9, "logprobs": 3},
        {"min_p": 0.1, "presence_penalty": 1.0},
        {"temperature": 0.0, "repetition_penalty": 1.5, "logprobs": 0},
        {"temperature": 1.5, "top_k": 1200, "top_p": 0.95, "min_p": 0.01},
        {"logit_bias": {3: 5.0, 700: -100.0}, "frequency_penalty": 0.5},
        {"min_tokens": 9, "stop_token_ids": [4, 5]},
        {"temperature": 0.0, "logit_bias": {1999: 100.0}},
        {"temperature": 0.01, "top_p": 0.5},
        {"temperature": 50.0, "top_p": 0.99},
    ]
    return [
        make_row(prompt=range(i + 1), output=[9] * (i % 4), seed=i * 31, index=i % 3, **shape)
        for i, shape in enumerate(shapes * 2)
    ]


@pytest.mark.parametrize("kind", ["float", "ties"])
@pytest.mark.parametrize("vocab", [2003, 50257])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_depend_on_the_batch(kind: str, vocab: int, threads: int) -> None:
    torch.set_num_threads(threads)
    rows = _mixed_rows()
    logits = _logits(len(rows), vocab, seed=6)
    if kind == "ties":
        logits = logits.bfloat16().float()
    sampler = Sampler(vocab, (0, 2))
    before = logits.clone()
    together = sampler.sample(logits, rows)
    assert torch.equal(logits, before)
    rng = random.Random(7)
    for _ in range(6):
        chosen = rng.sample(range(len(rows)), rng.randrange(1, len(rows) + 1))
        result = sampler.sample(logits[chosen], [rows[i] for i in chosen])
        assert result.token_ids == [together.token_ids[i] for i in chosen]
        assert result.logprobs == [together.logprobs[i] for i in chosen]
    for i, row in enumerate(rows):
        alone = sampler.sample(logits[i : i + 1], [row])
        assert (alone.token_ids[0], alone.logprobs[0]) == (together.token_ids[i], together.logprobs[i])


def test_per_row_parameters() -> None:
    logits = _logits(1, 100, seed=2, spread=1.0)
    likeliest = logits[0].argsort(descending=True).tolist()
    sampler = Sampler(100, ())
    seen: list[set[int]] = [set() for _ in range(4)]
    for seed in range(300):
        rows = [
            make_row(seed=seed, top_k=3),
            make_row(seed=seed, temperature=0.0),
            make_row(seed=seed, top_k=8),
            make_row(seed=seed),
        ]
        for tokens, token in zip(seen, sampler.sample(logits.expand(4, -1), rows).token_ids, strict=True):
            tokens.add(token)
    assert seen[0] == set(likeliest[:3])
    assert seen[1] == {likeliest[0]}
    assert seen[2] == set(likeliest[:8])
    assert len(seen[3]) > 30


@pytest.mark.parametrize("params", [{}, {"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.01}, {"temperature": 100.0}], ids=str)
def test_a_forbidden_token_is_never_drawn(params: dict[str, Any]) -> None:
    logits = _logits(1, 30)
    forbidden = {0, 7, 29, int(logits.argmax())}
    logits[0, list(forbidden)] = -math.inf
    rows = [make_row(seed=seed, **params) for seed in range(5000)]
    tokens = Sampler(30, ()).sample(logits.expand(len(rows), -1), rows).token_ids
    assert not forbidden & set(tokens)


def test_min_tokens_keeps_eos_and_stop_ids_out_until_reached() -> None:
    logits = torch.zeros(1, 20)
    logits[0, [1, 6]] = 50.0  # EOS and a stop id
    for temperature in (0.0, 1.0):
        request = make_request(temperature=temperature, min_tokens=3, stop_token_ids=[6], seed=2)
        row = SamplingRow(request)
        sampler = Sampler(20, (1,))
        for step in range(5):
            (token,) = sampler.sample(logits, [row]).token_ids
            assert (token in (1, 6)) == (step >= 3)
            request.token_ids.append(token)


def test_order_bias_then_penalties_then_temperature() -> None:
    # Bias first: 1 + 3 = 4, halved by the repetition penalty to 2. The other way round it would be 3.5.
    logits = torch.tensor([[2.5, 1.0, 0.0]])
    row = make_row(prompt=[1], temperature=0.0, logit_bias={1: 3.0}, repetition_penalty=2.0)
    assert Sampler(3, ()).sample(logits, [row]).token_ids == [0]
    row = make_row(prompt=[1], temperature=0.0, logit_bias={1: 4.5}, repetition_penalty=2.0)
    assert Sampler(3, ()).sample(logits, [row]).token_ids == [1]
    # Temperature before the filters: at 0.5 the shares 0.67, 0.24, 0.09 become 0.87, 0.12, 0.02.
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    rows = [make_row(seed=seed, temperature=0.5, top_p=0.8) for seed in range(500)]
    assert set(Sampler(3, ()).sample(logits.expand(500, -1), rows).token_ids) == {0}


def test_penalties_steer_from_step_to_step_and_survive_preemption() -> None:
    logits = _logits(1, 300, spread=0.5)
    sampler = Sampler(300, ())

    def run(rebuild_at: set[int]) -> list[int]:
        request = make_request(seed=5, frequency_penalty=1.0, repetition_penalty=1.3, presence_penalty=0.5)
        row = SamplingRow(request)
        for step in range(40):
            if step in rebuild_at:
                row = SamplingRow(request)
            request.token_ids += sampler.sample(logits, [row]).token_ids
        return request.token_ids

    assert run({1, 17, 18}) == run(set())
    request = make_request(temperature=0.0, presence_penalty=2.0, prompt=[0])
    row = SamplingRow(request)
    close = torch.linspace(0.0, 1.0, 300).unsqueeze(0)
    for _ in range(20):
        request.token_ids += sampler.sample(close, [row]).token_ids
    assert request.token_ids[1:] == list(range(299, 279, -1))


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = _logits(3, 200)
    rows = [
        make_row(temperature=0.3, top_k=2, logit_bias={5: 100.0}, logprobs=4),
        make_row(),
        make_row(temperature=0.0, repetition_penalty=3.0, prompt=range(100), logprobs=2, min_tokens=1),
    ]
    result = Sampler(200, tuple(range(50))).sample(logits, rows)
    gold = torch.log_softmax(logits, -1)
    assert result.logprobs[1] is None
    for i, k in ((0, 4), (2, 2)):
        entry = result.logprobs[i]
        assert entry is not None
        assert entry.token_id == result.token_ids[i]
        assert entry.logprob == gold[i, entry.token_id].item()
        assert list(entry.top_ids) == gold[i].argsort(descending=True)[:k].tolist()


def test_a_grammar_like_hook_between_bias_and_penalties() -> None:
    class OnlyOdd:
        def wants(self, row: SamplingRow) -> bool:
            return row.request.seed == 1

        def apply(self, logits: torch.Tensor, targets: Sequence[Target]) -> None:
            assert [target.row.request.seed for target in targets] == [1]
            for target in targets:
                logits[target.place, ::2] = -torch.inf

    sampler = Sampler(10, (), masks=(OnlyOdd(),))
    rows = [make_row(temperature=0.0, seed=seed, logit_bias={4: 100.0, 7: 1.0}) for seed in (0, 1, 2)]
    assert sampler.sample(torch.zeros(3, 10), rows).token_ids == [4, 7, 4]


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"temperature": 1e-320}, {"top_p": 0.5}, {"top_k": 2}])
def test_extreme_logits(params: dict[str, Any]) -> None:
    logits = torch.full((4, 300), -math.inf)
    logits[0] = -3.4e38
    logits[0, 9] = 3.4e38
    logits[1, 200] = -1e30  # the only one left
    logits[2] = 0.0
    logits[2, 31] = math.inf
    logits[3] = -1e38
    logits[3, 8] = 1.0
    rows = [make_row(seed=seed, **params) for seed in range(4)]
    assert Sampler(300, ()).sample(logits, rows).token_ids == [9, 200, 31, 8]


@pytest.mark.parametrize("fill", [-math.inf, math.nan, math.inf])
@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 2, "logprobs": 2}, {"min_p": 1}]
)
def test_a_broken_model_still_gets_valid_ids(fill: float, params: dict[str, Any]) -> None:
    logits = torch.full((2, 3000), fill)
    result = Sampler(3000, ()).sample(logits, [make_row(**params), make_row(temperature=0.5)])
    assert all(0 <= token < 3000 for token in result.token_ids)


def test_everything_masked_is_answered_by_the_lowest_id() -> None:
    row = make_row(min_tokens=1, stop_token_ids=[0, 1, 2, 3])
    assert Sampler(4, ()).sample(torch.zeros(1, 4), [row]).token_ids == [0]


def test_no_rows() -> None:
    result = Sampler(5, ()).sample(torch.empty(0, 5), [])
    assert (result.token_ids, result.logprobs) == ([], [])
