"""What a prefix hit may not change, and what a reset must, on the real runner."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.messages import ResetPrefixCache
from engine.sampling.sampler import Sampler
from tests.parity.driver import build, greedy, random_prompts, run
from tests.tiny_models import VOCAB_SIZE, make_checkpoint

PROMPT = random_prompts(random.Random(4), [32], VOCAB_SIZE)[0]


@pytest.fixture
def seen_logits(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Every logits tensor that reaches the sampler."""
    seen: list[torch.Tensor] = []
    sample = Sampler.sample

    def recording(self: Sampler, logits: torch.Tensor, rows: object) -> object:
        seen.append(logits.clone())
        return sample(self, logits, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(Sampler, "sample", recording)
    return seen


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_E4_a_prefix_hit_gives_the_same_logits(family: str, tmp_path: Path, seen_logits: list[torch.Tensor]) -> None:
    """E4: a prompt of 32 tokens, block size 16, twice: a hit of 16 (one token must be computed), the same logits."""
    core = build(make_checkpoint(family, tmp_path, seed=1), block_size=16)
    runs = []
    for name in ("cold", "warm"):
        seen_logits.clear()
        result = run(core, [PROMPT], greedy(4, logprobs=20), name=name)
        runs.append((result, torch.cat(seen_logits)))
    (cold, cold_logits), (warm, warm_logits) = runs
    assert cold.num_cached_tokens == [0]
    assert warm.num_cached_tokens == [16]
    assert warm.token_ids == cold.token_ids
    torch.testing.assert_close(warm_logits, cold_logits, atol=2e-5, rtol=0)
    for ours, theirs in zip(warm.logprobs[0], cold.logprobs[0], strict=True):
        assert ours.token_id == theirs.token_id
        assert ours.top_logprobs == pytest.approx(theirs.top_logprobs, abs=2e-5)


def test_E6_no_hit_after_a_reset(tmp_path: Path) -> None:
    """E6: the cache is reset between two equal prompts."""
    core = build(make_checkpoint("llama", tmp_path), block_size=16)
    before = run(core, [PROMPT], greedy(4), name="before")
    core.handle(ResetPrefixCache())
    after = run(core, [PROMPT], greedy(4), name="after")
    assert after.num_cached_tokens == [0]
    assert after.token_ids == before.token_ids
    assert core.stats().prefix_hit_tokens_total == 0
