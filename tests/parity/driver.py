"""Drives an engine core in process, and transformers beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.build import build_engine
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.messages import AddSequence, RawLogprobs, SequenceId
from engine.sampling_params import SamplingParams

TIE = 1e-4
"""Two best logits closer than this could change places by rounding alone; parity cases must not hold such a pair."""

Prompt = Sequence[int]


def build(model_dir: Path, **overrides: Any) -> EngineCore:
    """A float32 engine on one thread."""
    arguments: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 256, "block_size": 4}
    config = EngineConfig.from_kwargs(model_dir=model_dir, **(arguments | overrides))
    return build_engine(config, lambda _progress: None)


def greedy(max_tokens: int, **overrides: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **overrides)


@dataclass
class Sequences:
    """What came out of an engine for each prompt."""

    token_ids: list[list[int]]
    logprobs: list[list[RawLogprobs]]
    num_cached_tokens: list[int] = field(default_factory=list)


def run(
    core: EngineCore,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    arrivals: random.Random | None = None,
    name: str = "request",
) -> Sequences:
    """Runs the prompts to their end, checking the core's invariants after each step.

    arrivals: None sends all at once; else they come in random order, some while others run.
    """
    ids = [SequenceId(f"{name}-{i}/0") for i in range(len(prompts))]
    messages = [
        AddSequence(sequence_id, tuple(prompt), params, seed=0, index=0, arrival_time=float(i))
        for i, (sequence_id, prompt) in enumerate(zip(ids, prompts, strict=True))
    ]
    if arrivals is not None:
        arrivals.shuffle(messages)
    place = {sequence_id: i for i, sequence_id in enumerate(ids)}
    result = Sequences([[] for _ in ids], [[] for _ in ids], [0] * len(ids))
    finished: set[SequenceId] = set()
    while messages or core.has_work():
        while messages and (arrivals is None or not core.has_work() or arrivals.random() < 0.4):
            core.handle(messages.pop(0))
        step = core.step()
        core.check_integrity()
        for admitted in step.admitted:
            result.num_cached_tokens[place[admitted.sequence_id]] = admitted.num_cached_tokens
        for output in step.outputs:
            result.token_ids[place[output.sequence_id]].extend(output.token_ids)
            result.logprobs[place[output.sequence_id]].extend(output.logprobs or ())
            if output.finish_reason is not None:
                assert output.finish_reason in {"stop", "length"}
                assert output.sequence_id not in finished
                finished.add(output.sequence_id)
    assert finished == set(ids)
    assert core.stats().num_blocks_used == 0
    return result


@torch.inference_mode()
def reference(model: Any, prompts: Sequence[Prompt], max_tokens: int, batch_size: int = 1) -> list[list[int]]:
    """Greedy tokens by transformers' `generate`; fails on a near-tie instead of hiding it.

    batch_size: prompts of like length that it takes at once, padded on the left (for a model that is slow one by one).
    """
    outputs: list[list[int]] = [[] for _ in prompts]
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    eos = model.generation_config.eos_token_id
    for first in range(0, len(prompts), batch_size):
        batch = by_length[first : first + batch_size]
        width = max(len(prompts[i]) for i in batch)
        ids = torch.tensor([[0] * (width - len(prompts[i])) + list(prompts[i]) for i in batch])
        mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in batch])
        generated = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=0,
        )
        best = torch.stack(generated.logits).float().topk(2).values
        gaps = (best[..., 0] - best[..., 1]).T.tolist()
        for i, tokens, row_gaps in zip(batch, generated.sequences[:, width:].tolist(), gaps, strict=True):
            length = tokens.index(eos) + 1 if eos in tokens else len(tokens)
            outputs[i] = tokens[:length]
            smallest = min(row_gaps[:length])
            assert smallest >= TIE, f"near-tie of {smallest:.1e} after prompt {i}: choose another seed or prompt"
    return outputs


def random_prompts(rng: random.Random, lengths: Sequence[int], vocab_size: int, lowest: int = 3) -> list[list[int]]:
    """Prompts of the given lengths, without the special ids below `lowest`."""
    return [[rng.randrange(lowest, vocab_size) for _ in range(length)] for length in lengths]
