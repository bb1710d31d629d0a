from __future__ import annotations

import pytest
import torch

from engine.sampling.logprobs import compute_logprobs


def _gold(logits: torch.Tensor, k: int) -> list[tuple[int, float]]:
    logprobs = torch.log_softmax(logits, -1).tolist()
    return sorted(enumerate(logprobs), key=lambda pair: (-pair[1], pair[0]))[:k]


@pytest.mark.parametrize("vocab", [3, 40, 1000])
def test_equals_log_softmax_ordered_by_logprob_then_id(vocab: int) -> None:
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(vocab)) * 2
    logits[3:] = logits[3:].round()  # many ties
    token_ids, num_top = [0, 1, 2, 0, 1, 2], [0, 1, 20, 5, 0, 20]
    results = compute_logprobs(logits, token_ids, num_top)
    for row, result in enumerate(results):
        assert result.token_id == token_ids[row]
        assert result.logprob == torch.log_softmax(logits[row], -1)[token_ids[row]].item()
        assert list(zip(result.top_ids, result.top_logprobs, strict=True)) == _gold(logits[row], num_top[row])


def test_L2_no_alternatives_asked_for() -> None:
    (result,) = compute_logprobs(torch.zeros(1, 4), [2], [0])
    assert (result.top_ids, result.top_logprobs) == ((), ())
    assert result.logprob == pytest.approx(-1.3862944)


def test_ties_at_the_end_of_the_list_go_to_the_lowest_ids() -> None:
    logits = torch.zeros(1, 300)
    logits[0, 200] = 1.0
    (result,) = compute_logprobs(logits, [7], [4])
    assert result.top_ids == (200, 0, 1, 2)


def test_forbidden_alternatives_and_huge_logits() -> None:
    logits = torch.tensor([[3e38, -3e38, -torch.inf, 0.0]])
    (result,) = compute_logprobs(logits, [0], [4])
    assert result.logprob == 0.0
    assert result.top_ids[0] == 0


def test_rows_do_not_depend_on_each_other() -> None:
    logits = torch.randn(5, 777, generator=torch.Generator().manual_seed(2))
    together = compute_logprobs(logits, [5, 6, 7, 8, 9], [1, 20, 0, 3, 7])
    for row, k in enumerate([1, 20, 0, 3, 7]):
        assert compute_logprobs(logits[row : row + 1], [5 + row], [k]) == [together[row]]
