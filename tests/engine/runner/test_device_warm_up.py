"""The warm-up meets every variant of every kernel that serving meets, so nothing is compiled while requests wait."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.messages import AddSequence, SequenceId
from engine.runner.accelerator import HostAccelerator
from engine.runner.device_runner import DeviceRunner
from engine.runner.device_warm_up import DeviceWarmUp
from engine.sampling_params import SamplingParams
from kernels.tiles import Family
from tests.engine.runner.launches import record_launches
from tests.tiny_models import make_checkpoint

PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"top_k": 7},
    {"top_p": 0.7, "min_p": 0.1},
    {"frequency_penalty": 0.3, "repetition_penalty": 1.2},
    {"temperature": 0.0, "presence_penalty": 0.3, "logprobs": 4},
    {"logit_bias": {3: 1.0}, "min_tokens": 3, "top_k": 2},
)


class CompilingHost(HostAccelerator):
    compiles = True


def serve(core: EngineCore, rng: random.Random, num_requests: int, longest: int) -> None:
    """Random requests, some with a common prefix, in random order."""
    shared = [5] * (longest // 2)
    serial = 0
    while serial < num_requests or core.has_work():
        while serial < num_requests and (not core.has_work() or rng.random() < 0.5):
            length = rng.choice([1, 2, 15, 16, 17, rng.randrange(1, longest), longest])
            prompt = [rng.randrange(3, 60) for _ in range(length)]
            if rng.random() < 0.3:
                prompt[: len(shared)] = shared[:length]
            params = SamplingParams(max_tokens=rng.choice([3, 12]), ignore_eos=True, **rng.choice(PARAMS))
            core.handle(AddSequence(SequenceId(f"{serial}/0"), tuple(prompt), params, serial, 0, float(serial)))
            serial += 1
        core.step()


MODELS = ("llama", "llama2", "mqa", "qwen3", "mistral")
DEVICES: tuple[tuple[Family, int], ...] = (("hopper", 132), ("ampere", 108), ("ada", 46), ("blackwell", 148))


@pytest.mark.parametrize(
    ("model", "device"),
    [
        pytest.param(
            model, device, id=f"{model}-{device[0]}", marks=[pytest.mark.full] if model != "llama" or n else []
        )
        for model in MODELS
        for n, device in enumerate(DEVICES)
    ],
)
@pytest.mark.parametrize(
    "bounds",
    [
        {"max_num_seqs": 24, "max_num_batched_tokens": 300},
        {"max_num_seqs": 5, "max_num_batched_tokens": 64, "cuda_graphs": False},
        {"max_num_seqs": 1, "max_num_batched_tokens": 1500, "block_size": 32},
        {"max_num_seqs": 20, "max_num_batched_tokens": 17, "overlap": True, "cuda_graphs": False},
    ],
    ids=["graphs", "eager", "single", "small-chunks"],
)
def test_serving_launches_nothing_new(
    model: str, device: tuple[Family, int], bounds: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = make_checkpoint(model, tmp_path, tokenizer=False, max_position_embeddings=1024, num_hidden_layers=1)
    launches = record_launches(monkeypatch, *device)
    arguments = {"attention_backend": "triton", "dtype": "float32", "num_threads": 1, "num_kv_blocks": 200} | bounds
    config = EngineConfig(model_dir=model_dir, **arguments)
    runner = DeviceRunner(config, lambda _progress: None, CompilingHost(), None)
    ready = set(launches.variants)
    assert len({variant[0] for variant in ready}) >= 8
    serve(EngineCore(config, runner.info, runner), random.Random(model), 16, 900)
    assert not launches.variants - ready, sorted(map(str, launches.variants - ready))


def test_every_step_keeps_the_bounds(tmp_path: Path) -> None:
    for max_num_seqs, max_num_batched_tokens, context, num_blocks in (
        (1, 1, 2, 1),
        (3, 2, 17, 4),
        (256, 8192, 131072, 16),
    ):
        config = EngineConfig(
            model_dir=tmp_path, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        warm_up = DeviceWarmUp(config, context, num_blocks)
        for step in (*warm_up.largest(), *warm_up.steps(), *warm_up.single_chunks()):
            assert 0 < step.num_tokens <= max_num_batched_tokens
            assert 0 < len(step.scheduled) <= max_num_seqs
            for item in step.scheduled:
                assert 0 <= item.start < item.start + item.num_new_tokens == item.request.num_tokens <= context
                assert len(item.request.block_ids) == -(-item.request.num_tokens // config.block_size)
                assert all(0 < block <= num_blocks for block in item.request.block_ids)
