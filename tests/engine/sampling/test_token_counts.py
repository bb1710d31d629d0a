from __future__ import annotations

import random
from collections import Counter

import pytest

from engine.sampling.token_counts import TokenCounts
from tests.engine.sampling.rows import make_request


def _as_dict(counts: TokenCounts) -> dict[int, int]:
    return dict(zip(counts.token_ids.tolist(), map(int, counts.counts.tolist()), strict=True))


def test_none_without_penalties() -> None:
    assert TokenCounts.of(make_request()) is None


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_prompt_is_not_held_without_repetition_penalty(penalty: str) -> None:
    counts = TokenCounts.of(make_request(prompt=[5, 5, 6], output=[7, 7, 5], **{penalty: -0.5}))
    assert counts is not None
    counts.update()
    assert _as_dict(counts) == {7: 2, 5: 1}


def test_prompt_counts_zero_with_repetition_penalty() -> None:
    counts = TokenCounts.of(make_request(prompt=[5, 5, 6], output=[7, 7, 5], repetition_penalty=1.2))
    assert counts is not None
    counts.update()
    assert _as_dict(counts) == {5: 1, 6: 0, 7: 2}


def test_update_is_incremental_and_idempotent_and_a_rebuild_agrees() -> None:
    rng = random.Random(3)
    request = make_request(prompt=[rng.randrange(40) for _ in range(30)], repetition_penalty=1.1, presence_penalty=0.1)
    counts = TokenCounts(request)
    for _ in range(300):
        request.token_ids += [rng.randrange(500) for _ in range(rng.randrange(3))]
        counts.update()
        counts.update()
        generated = Counter(request.token_ids[30:])
        assert _as_dict(counts) == {i: generated[i] for i in request.token_ids}
        rebuilt = TokenCounts(request)
        rebuilt.update()
        assert rebuilt.token_ids.tolist() == counts.token_ids.tolist()
        assert rebuilt.counts.tolist() == counts.counts.tolist()
