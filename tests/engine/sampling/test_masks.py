from __future__ import annotations

import math

import torch

from engine.sampling.hooks import Target
from engine.sampling.masks import LogitBias, MinTokensMask
from tests.engine.sampling.rows import make_row

VOCAB = 16


def test_bias_is_added_to_its_row_only() -> None:
    rows = [make_row(logit_bias={3: 2.5, 7: -100.0}), make_row(logit_bias={3: -1.0})]
    logits = torch.ones(3, VOCAB)
    LogitBias().apply(logits, [Target(0, rows[0]), Target(2, rows[1])])
    expected = torch.ones(3, VOCAB)
    expected[0, 3], expected[0, 7], expected[2, 3] = 3.5, -99.0, 0.0
    assert torch.equal(logits, expected)


def test_bias_of_unknown_ids_is_passed_over() -> None:
    logits = torch.zeros(2, VOCAB)
    rows = [make_row(logit_bias={VOCAB: 5.0, 2: 1.0, 10**10: 1.0}), make_row(logit_bias={99: 1.0})]
    LogitBias().apply(logits, [Target(i, row) for i, row in enumerate(rows)])
    assert logits.nonzero().tolist() == [[0, 2]]


def test_bias_wanted_only_where_given() -> None:
    assert LogitBias().wants(make_row(logit_bias={0: 1.0}))
    assert not LogitBias().wants(make_row())


def test_min_tokens_masks_eos_and_stop_ids_until_reached() -> None:
    hook = MinTokensMask([0, 5])
    row = make_row(min_tokens=2, stop_token_ids=[9, 5, 400])
    for generated in range(4):
        wanted = hook.wants(row)
        assert wanted == (generated < 2)
        if wanted:
            logits = torch.zeros(2, VOCAB)
            hook.apply(logits, [Target(1, row)])
            assert [i for i, x in enumerate(logits[1].tolist()) if x == -math.inf] == [0, 5, 9]
            assert not logits[0].any()
        row.request.token_ids.append(1)


def test_min_tokens_counts_generated_tokens_not_the_prompt() -> None:
    assert MinTokensMask([0]).wants(make_row(prompt=range(10), min_tokens=1))
    assert not MinTokensMask([0]).wants(make_row(prompt=range(10)))


def test_min_tokens_mask_without_any_id_to_mask() -> None:
    logits = torch.zeros(1, VOCAB)
    MinTokensMask([]).apply(logits, [Target(0, make_row(min_tokens=1))])
    assert not logits.any()
