from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.sampling.hooks import Target
from engine.sampling.penalties import Penalties
from engine.sampling_params import SamplingParams
from tests.engine.sampling.rows import make_row

VOCAB = 32


def _by_formula(logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    result = list(logits)
    for i in range(len(logits)):
        if i in prompt or i in output:
            result[i] = (
                result[i] / params.repetition_penalty if result[i] > 0 else result[i] * params.repetition_penalty
            )
        result[i] -= output.count(i) * params.frequency_penalty + (i in output) * params.presence_penalty
    return result


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 0.7},
        {"frequency_penalty": -1.5},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.5},
        {"presence_penalty": -0.3, "frequency_penalty": 0.2, "repetition_penalty": 1.7},
    ],
    ids="+".join,
)
@pytest.mark.parametrize("output", [[], [4, 9, 4, 4, 20]], ids=["no output", "output"])
def test_formula(penalties: dict[str, Any], output: list[int]) -> None:
    prompt = [9, 3, 3, 17]
    row = make_row(prompt=prompt, output=output, **penalties)
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    changed = logits.clone()
    Penalties().apply(changed, [Target(1, row)])
    expected = _by_formula(logits[1].tolist(), row.params, prompt, output)
    assert changed[1].tolist() == pytest.approx(expected, abs=1e-5)
    untouched = [i for i in range(VOCAB) if i not in prompt and i not in output]
    assert torch.equal(changed[1, untouched], logits[1, untouched])
    assert torch.equal(changed[[0, 2]], logits[[0, 2]])


def test_rows_keep_their_own_parameters_and_counts() -> None:
    rows = [
        make_row(output=[5, 5], frequency_penalty=1.0),
        make_row(output=[5, 6], presence_penalty=0.5),
        make_row(prompt=[7], output=[], repetition_penalty=2.0),
    ]
    logits = torch.ones(3, VOCAB)
    Penalties().apply(logits, [Target(i, row) for i, row in enumerate(rows)])
    assert logits[0, 5] == -1.0
    assert logits[1, [5, 6]].tolist() == [0.5, 0.5]
    assert logits[2, 7] == 0.5
    assert int((logits != 1.0).sum()) == 4


def test_counts_follow_the_request() -> None:
    row = make_row(frequency_penalty=0.5)
    for step in range(4):
        logits = torch.zeros(1, VOCAB)
        Penalties().apply(logits, [Target(0, row)])
        assert logits[0, 8] == -0.5 * step
        row.request.token_ids.append(8)


def test_a_forbidden_token_stays_forbidden() -> None:
    row = make_row(prompt=[3], output=[3], repetition_penalty=0.5, presence_penalty=-2.0)
    logits = torch.zeros(1, VOCAB)
    logits[0, 3] = -math.inf
    Penalties().apply(logits, [Target(0, row)])
    assert logits[0, 3] == -math.inf


def test_wanted_only_where_asked_for() -> None:
    hook = Penalties()
    assert not hook.wants(make_row())
    assert hook.wants(make_row(presence_penalty=0.1))
    assert hook.wants(make_row(repetition_penalty=0.9))
