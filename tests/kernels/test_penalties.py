"""`kernels.penalties` against its torch twin and the penalties of the CPU's sampler."""

from __future__ import annotations

import math
import random

import pytest
import torch

from engine.sampling.hooks import Target
from engine.sampling.penalties import Penalties
from kernels.penalties import apply_penalties_, count_tokens_
from kernels.reference.penalties import apply_penalties_ as apply_reference_
from kernels.reference.penalties import count_tokens_ as count_reference_
from kernels.row_parameters import SEEN_IN_PROMPT, Column
from tests.engine.sampling.rows import make_row
from tests.kernels.rows import Row, make_table

R, F, P = Column.REPETITION, Column.FREQUENCY, Column.PRESENCE
ROWS: list[Row] = [{}, {R: 1.3}, {F: -1.5}, {P: 0.7}, {R: 0.5, F: 0.2, P: -0.3}, {}]


def _counts(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 4, (num_rows, vocab_size), generator=generator, dtype=torch.int32)
    counts *= torch.randint(0, 2, counts.shape, generator=generator, dtype=torch.int32)
    return counts + SEEN_IN_PROMPT * torch.randint(0, 2, counts.shape, generator=generator, dtype=torch.int32)


@pytest.mark.parametrize("vocab_size", [1, 50, 4097])
def test_apply_equals_the_twin(vocab_size: int) -> None:
    table = make_table(ROWS)
    counts = _counts(len(ROWS), vocab_size)
    place = torch.tensor([4, 0, 3, 1, 2])
    wide = torch.full((5, vocab_size + 5), torch.nan)
    logits = wide[:, 2 : vocab_size + 2]
    logits.copy_(torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(1)) * 3)
    expected = logits.clone()
    apply_reference_(expected, counts, table, place)
    before = counts.clone()
    apply_penalties_(logits, counts, table, place)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(counts, before)
    assert int(wide.isnan().sum()) == 25


def test_rows_that_ask_for_nothing_are_left_alone() -> None:
    table = make_table(ROWS)
    counts = _counts(len(ROWS), 300)
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    apply_penalties_(logits, counts, table, torch.tensor([0, 5]))
    assert torch.equal(logits, before)
    earlier = counts.clone()
    count_tokens_(counts, table, torch.tensor([0, 5]), torch.tensor([3, 299]))
    assert torch.equal(counts, earlier)


@pytest.mark.parametrize("num_rows", [1, 5, 300])
def test_count_equals_the_twin(num_rows: int) -> None:
    rows = (ROWS * 60)[:num_rows]
    table = make_table(rows)
    generator = torch.Generator().manual_seed(num_rows)
    counts = _counts(num_rows, 40)
    expected = counts.clone()
    for _ in range(3):
        place = torch.randperm(num_rows, generator=generator)[: max(1, num_rows - 2)]
        tokens = torch.randint(0, 40, place.shape, generator=generator)
        count_reference_(expected, table, place, tokens)
        count_tokens_(counts, table, place, tokens)
        assert torch.equal(counts, expected)


def test_no_rows() -> None:
    none = torch.empty(0, dtype=torch.int64)
    apply_penalties_(torch.empty(0, 40), _counts(2, 40), make_table(ROWS), none)
    count_tokens_(_counts(2, 40), make_table(ROWS), none, none)


def test_a_forbidden_token_stays_forbidden() -> None:
    logits = torch.full((1, 8), -math.inf)
    counts = torch.full((6, 8), SEEN_IN_PROMPT + 3, dtype=torch.int32)
    apply_penalties_(logits, counts, make_table(ROWS), torch.tensor([4]))
    assert bool((logits == -math.inf).all())


@pytest.mark.parametrize("seed", range(3))
def test_table_follows_the_cpu_samplers_counts(seed: int) -> None:
    """Random sequences: at each step the same logits as from the penalties that count the request's own tokens."""
    vocab_size = 30
    rng = random.Random(seed)
    table = make_table(ROWS)
    requests = []
    counts = torch.zeros(len(ROWS), vocab_size, dtype=torch.int32)
    for i, row in enumerate(ROWS):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 9))]
        penalties = {
            "repetition_penalty": row.get(R, 1.0),
            "frequency_penalty": row.get(F, 0.0),
            "presence_penalty": row.get(P, 0.0),
        }
        requests.append(make_row(prompt=prompt, **penalties))
        counts[i, prompt] = SEEN_IN_PROMPT
    for step in range(12):
        chosen = rng.sample(range(len(ROWS)), rng.randrange(1, len(ROWS) + 1))
        logits = torch.randn(len(chosen), vocab_size, generator=torch.Generator().manual_seed(step)) * 2
        expected = logits.clone()
        hook = Penalties()
        wanting = [Target(place, requests[i]) for place, i in enumerate(chosen) if hook.wants(requests[i])]
        if wanting:
            hook.apply(expected, wanting)
        place = torch.tensor(chosen)
        apply_penalties_(logits, counts, table, place)
        torch.testing.assert_close(logits, expected, rtol=0, atol=0)
        tokens = [rng.randrange(vocab_size) for _ in chosen]
        count_tokens_(counts, table, place, torch.tensor(tokens))
        for i, token in zip(chosen, tokens, strict=True):
            requests[i].request.token_ids.append(token)
