"""Tiny random checkpoints of every family: greedy float32 tokens equal transformers', however the engine ran them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.parity.cases import MAX_TOKENS, SHARED, Case, make_case
from tests.parity.driver import TIE, build, greedy, reference, run
from tests.tiny_models import FAMILIES, VOCAB_SIZE, make_checkpoint


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family: str = request.param
    return make_case(family, tmp_path_factory.mktemp(family))


def test_expected_tokens_are_worth_comparing(case: Case) -> None:
    """A model that repeats itself, or ends at once, would hide mistakes."""
    tokens = [token for sequence in case.expected for token in sequence]
    assert len(tokens) > len(case.prompts) * MAX_TOKENS * 0.6
    assert len(set(tokens)) > 20


def test_ragged_batch(case: Case) -> None:
    core = build(case.model_dir)
    assert run(core, case.prompts, greedy(MAX_TOKENS)).token_ids == case.expected
    assert core.stats().preemptions_total == 0


def test_one_at_a_time(case: Case) -> None:
    core = build(case.model_dir, max_num_seqs=1, enable_prefix_caching=False)
    assert run(core, case.prompts, greedy(MAX_TOKENS)).token_ids == case.expected


@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_chunked_prefill(case: Case, block_size: int) -> None:
    core = build(case.model_dir, max_num_batched_tokens=7, block_size=block_size, num_kv_blocks=1200 // block_size)
    assert run(core, case.prompts, greedy(MAX_TOKENS)).token_ids == case.expected


def test_E2_preempted(case: Case) -> None:
    """E2: a pool too small for all; each request still fits alone."""
    core = build(case.model_dir, num_kv_blocks=56, max_num_batched_tokens=64)
    assert run(core, case.prompts, greedy(MAX_TOKENS)).token_ids == case.expected
    stats = core.stats()
    assert stats.preemptions_total >= 3
    assert stats.num_blocks_free + stats.num_blocks_cached == 56


def test_prefix_hits(case: Case) -> None:
    core = build(case.model_dir)
    first = run(core, case.prompts, greedy(MAX_TOKENS), name="first")
    assert first.token_ids == case.expected
    # Prompts that came together share blocks in the step that fills them.
    assert first.num_cached_tokens[-4:] == [0, SHARED, SHARED, SHARED]
    again = run(core, case.prompts, greedy(MAX_TOKENS), name="again")
    assert again.token_ids == case.expected
    assert again.num_cached_tokens == [(len(prompt) - 1) // 4 * 4 for prompt in case.prompts]
    assert core.stats().prefix_hit_tokens_total > 0


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_arrival(case: Case, seed: int) -> None:
    """Random order and times, chunks, preemptions and prefix hits, all together."""
    rng = random.Random(seed)
    block_size = rng.choice([2, 4, 7])
    core = build(
        case.model_dir,
        block_size=block_size,
        num_kv_blocks=-(-232 // block_size),
        max_num_batched_tokens=rng.choice([7, 30, 300]),
        max_num_seqs=rng.choice([3, 8, 32]),
    )
    assert run(core, case.prompts, greedy(MAX_TOKENS), arrivals=rng).token_ids == case.expected


@pytest.mark.parametrize("seed", range(2))
def test_steps_launched_one_ahead(case: Case, seed: int) -> None:
    """The overlapped loop: a step is laid out before the tokens of the one before it are known."""
    rng = random.Random(f"ahead {seed}")
    core = build(
        case.model_dir,
        overlap=True,
        num_kv_blocks=60,
        max_num_batched_tokens=rng.choice([30, 300]),
        max_num_seqs=rng.choice([3, 8]),
    )
    assert run(core, case.prompts, greedy(MAX_TOKENS), arrivals=rng).token_ids == case.expected


def test_near_ties_are_noticed(tmp_path: Path) -> None:
    """The guard of `reference` itself: with equal logits it fails."""
    model_dir = make_checkpoint("llama", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight[:] = model.lm_head.weight[0] + torch.arange(VOCAB_SIZE)[:, None] * TIE * 1e-6
    with pytest.raises(AssertionError, match="near-tie"):
        reference(model, [[5, 6, 7]], 2)
