"""The whole engine with the Triton kernels, under Triton's interpreter, against the torch back end's greedy tokens.

The interpreter takes about a third of a second a step, so models and prompts are as small as can be.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.core.engine_core import EngineCore
from engine.messages import AddSequence, SequenceId
from engine.sampling_params import SamplingParams
from tests.parity.driver import build, greedy, random_prompts, run
from tests.tiny_models import FAMILIES, make_checkpoint

VOCAB_SIZE = 64
BLOCK_SIZE = 8
SHARED = 8
MAX_TOKENS = 6
SOME = ("llama", "mistral", "qwen3")
"""Grouped queries, a window of 12, norms of query and key heads."""
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def make_model(family: str, path: Path) -> Path:
    shape = dict(SHAPE)
    if family in {"mqa", "smollm", "qwen3_tied"}:
        shape["num_key_value_heads"] = 1
    return make_checkpoint(family, path, seed=5, tokenizer=False, **shape)


def make_prompts(family: str) -> list[list[int]]:
    rng = random.Random(f"interpreter {family}")
    prompts = random_prompts(rng, [15, 16, 14], VOCAB_SIZE)
    shared = random_prompts(rng, [SHARED], VOCAB_SIZE)[0]
    return prompts + [shared + tail for tail in random_prompts(rng, [1, 7], VOCAB_SIZE)]


def interpreted(model_dir: Path, **overrides: Any) -> EngineCore:
    """Pools, batches and chunks so small that sequences wait, are preempted, and are computed in pieces."""
    bounds = {"num_kv_blocks": 7, "max_num_seqs": 3, "max_num_batched_tokens": 12, "max_model_len": 32}
    return build(model_dir, **({"attention_backend": "triton", "block_size": BLOCK_SIZE} | bounds | overrides))


def expected(model_dir: Path, prompts: list[list[int]]) -> list[list[int]]:
    return run(build(model_dir), prompts, greedy(MAX_TOKENS)).token_ids


@pytest.mark.parametrize("family", [f if f in SOME else pytest.param(f, marks=pytest.mark.full) for f in FAMILIES])
def test_greedy_tokens_equal_the_torch_back_ends(family: str, tmp_path: Path) -> None:
    """Chunked prefill, prefix hits, preemption, graphs and steps launched ahead, all at once."""
    model_dir, prompts = make_model(family, tmp_path), make_prompts(family)
    core = interpreted(model_dir, overlap=True)
    assert run(core, prompts, greedy(MAX_TOKENS)).token_ids == expected(model_dir, prompts)
    stats = core.stats()
    assert stats.preemptions_total >= 1
    assert stats.prefix_hit_tokens_total >= SHARED


@pytest.mark.parametrize(
    ("overlap", "cuda_graphs"),
    [
        (False, False),
        pytest.param(False, True, marks=pytest.mark.full),
        pytest.param(True, False, marks=pytest.mark.full),
    ],
)
def test_plain_steps_and_no_graphs(overlap: bool, cuda_graphs: bool, tmp_path: Path) -> None:
    model_dir, prompts = make_model("llama", tmp_path), make_prompts("llama")[:3]
    core = interpreted(model_dir, overlap=overlap, cuda_graphs=cuda_graphs)
    assert run(core, prompts, greedy(MAX_TOKENS)).token_ids == expected(model_dir, prompts)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", SOME)
def test_any_order_of_arrival(family: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    model_dir, prompts = make_model(family, tmp_path), make_prompts(family)
    core = interpreted(
        model_dir,
        overlap=rng.random() < 0.5,
        cuda_graphs=rng.random() < 0.5,
        block_size=rng.choice([8, 16]),
        max_num_seqs=rng.choice([2, 5]),
        max_num_batched_tokens=rng.choice([5, 40]),
    )
    assert run(core, prompts, greedy(MAX_TOKENS), arrivals=rng).token_ids == expected(model_dir, prompts)


def test_sampled_requests_run(tmp_path: Path) -> None:
    """All kinds of sampling in one batch; each alone, without steps launched ahead, draws the same tokens."""
    model_dir, prompt = make_model("llama", tmp_path), make_prompts("llama")[0]
    kinds: dict[str, dict[str, Any]] = {
        "cut": {"top_p": 0.8, "top_k": 20, "min_p": 0.02},
        "penalised": {"frequency_penalty": 0.7, "repetition_penalty": 1.3},
        "edited": {"logit_bias": {7: 2.0}, "min_tokens": 4, "logprobs": 3},
    }

    def tokens_of(core: EngineCore, *names: str) -> dict[str, list[int]]:
        tokens: dict[str, list[int]] = {name: [] for name in names}
        for name in names:
            params = SamplingParams(max_tokens=4, seed=3, **kinds[name])
            core.handle(AddSequence(SequenceId(name), tuple(prompt), params, 3, 0, 0.0))
        while core.has_work():
            for output in core.step().outputs:
                tokens[output.sequence_id] += output.token_ids
                assert (output.logprobs is not None) == (output.sequence_id == "edited")
        return tokens

    together = tokens_of(interpreted(model_dir, num_kv_blocks=16, overlap=True), *kinds)
    assert all(1 <= len(tokens) <= 4 for tokens in together.values())
    core = interpreted(model_dir, overlap=False, cuda_graphs=False)
    assert {name: tokens_of(core, name)[name] for name in kinds} == together


def test_bfloat16_stays_near_the_torch_back_end(tmp_path: Path) -> None:
    """The type that GPUs run. A log probability of two layers of 8-bit mantissas is off by a few hundredths at most."""
    model_dir, prompts = make_model("qwen3", tmp_path), make_prompts("qwen3")[:1]
    params = greedy(1, logprobs=1)
    ours = run(interpreted(model_dir, dtype="bfloat16", overlap=True), prompts, params)
    theirs = run(build(model_dir, dtype="bfloat16"), prompts, params)
    assert ours.token_ids == theirs.token_ids
    assert ours.logprobs[0][0].logprob == pytest.approx(theirs.logprobs[0][0].logprob, abs=0.05)
