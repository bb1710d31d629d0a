"""Prompts of a tiny checkpoint, and transformers' answers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.parity.driver import random_prompts, reference
from tests.tiny_models import VOCAB_SIZE, make_checkpoint

MAX_TOKENS = 20
LENGTHS = (1, 2, 3, 4, 5, 8, 13, 16, 17, 31, 40)
LONG_LENGTHS = (200, 150)
"""Past a tile of prefill attention, a sliding window, and the trained context of the scaled rotary embeddings."""
SHARED = 24
"""Tokens of a prefix that some prompts share: six blocks of four."""


@dataclass(frozen=True)
class Case:
    model_dir: Path
    prompts: list[list[int]]
    expected: list[list[int]]


def make_case(family: str, path: Path) -> Case:
    """A near-tie among the answers is an error of the case."""
    model_dir = make_checkpoint(family, path, seed=3)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    rng = random.Random(f"parity of {family}")
    prompts = random_prompts(rng, LENGTHS + LONG_LENGTHS, VOCAB_SIZE)
    shared = random_prompts(rng, [SHARED], VOCAB_SIZE)[0]
    prompts += [shared + tail for tail in random_prompts(rng, [1, 5, 6, 30], VOCAB_SIZE)]
    return Case(model_dir, prompts, reference(model, prompts, MAX_TOKENS))
