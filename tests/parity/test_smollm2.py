"""SmolLM2-135M-Instruct from its GGUF file: greedy float32 tokens equal transformers' on real prompts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.demo import demo_model_path
from engine.errors import ModelLoadError
from engine.tokenizer import Tokenizer
from tests.parity.driver import build, greedy, reference, run
from tests.parity.real_prompts import CHATS, PLAIN

MAX_TOKENS = 16


@dataclass(frozen=True)
class Case:
    model: Path
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module")
def case() -> Case:
    try:
        path = demo_model_path()
    except ModelLoadError as error:
        pytest.skip(str(error))
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.load(path)
    prompts = [tokenizer.encode(text) for text in PLAIN]
    for messages in CHATS:
        text = tokenizer.apply_chat_template([dict(message) for message in messages])
        prompts.append(tokenizer.encode(text, add_special_tokens=False))
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return Case(path, prompts, reference(model, prompts, MAX_TOKENS, batch_size=5))


def test_the_prompts_are_varied(case: Case) -> None:
    lengths = sorted(len(prompt) for prompt in case.prompts)
    assert len(lengths) == 20
    assert lengths[0] < 5
    assert lengths[-1] > 300


def test_all_at_once(case: Case) -> None:
    core = build(case.model, block_size=16, num_kv_blocks=200)
    assert run(core, case.prompts, greedy(MAX_TOKENS)).token_ids == case.expected


def test_chunked_preempted_and_in_random_order(case: Case) -> None:
    """Odd chunks, a pool too small for all, shared prefixes, arrivals while others run."""
    core = build(case.model, block_size=16, num_kv_blocks=32, max_num_batched_tokens=101)
    result = run(core, case.prompts, greedy(MAX_TOKENS), arrivals=random.Random(3))
    assert result.token_ids == case.expected
    assert core.stats().preemptions_total > 0
    assert core.stats().prefix_hit_tokens_total > 0
