"""The whole engine on the device against the CPU's: a tiny model in float32, chunks, preemptions, graphs, overlap."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.engine_driver import CoreDriver, EngineDriver
from benchmarks.gpu.models import CONFIGS, config_of, write_config
from benchmarks.gpu.results import Reporter
from engine.build import build_runner
from engine.config import EngineConfig
from engine.models.decoder_loader import expected_tensors
from engine.models.registry import read_config
from engine.sampling_params import SamplingParams

ALLOWED_DIFFERENCE = 0.05
"""Share of sequences: in float32 two likeliest tokens lie next to each other now and then."""
CASE_SECONDS = 10


def run(device: Device, report: Reporter, budget: Budget) -> None:
    num_prompts, longest = (2, 10) if device.is_smoke else (40, 200)
    random = Random(0)
    for name in ("qwen2.5-0.5b",) if device.is_smoke else CONFIGS:
        if not budget.allows(CASE_SECONDS):
            report.missing(name, "no time left")
            continue
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(name, Path(folder), is_smoke=device.is_smoke)
            prompts = [random.choices(range(3, 320), k=random.randint(1, longest)) for _ in range(num_prompts)]
            _compare(name, device, report, Path(folder), prompts)


def write_checkpoint(name: str, folder: Path, *, is_smoke: bool) -> None:
    """A tiny model of the family of `name`, with weights that keep activations at about 1."""
    config = config_of(name, is_smoke=True)
    if not is_smoke:
        config |= {"hidden_size": 256, "intermediate_size": 384}
    write_config(config | {"torch_dtype": "float32"}, folder)
    generator = torch.Generator().manual_seed(0)
    weights = {
        key: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for key, shape in expected_tensors(read_config(folder)).items()
    }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def _compare(name: str, device: Device, report: Reporter, folder: Path, prompts: list[list[int]]) -> None:
    longest = max(len(prompt) for prompt in prompts)
    num_new = 2 if device.is_smoke else 24
    fields = {
        "dtype": "float32",
        "max_model_len": longest + num_new + 1,
        "max_num_seqs": 2 if device.is_smoke else 16,
        "max_num_batched_tokens": 8 if device.is_smoke else 128,
        # So few that running sequences are preempted.
        "num_kv_blocks": 2 + (longest + num_new) // 16 * (1 if device.is_smoke else 4),
    }
    greedy = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)
    reference_config = EngineConfig(model_dir=folder, device="cpu", attention_backend="torch", overlap=False, **fields)
    runner = build_runner(reference_config, lambda _progress: None)
    expected = CoreDriver(reference_config, runner.info, runner).generate(prompts, greedy)
    driver = EngineDriver(device, folder, **fields)
    for overlap in (True, False):
        loop = "overlapped" if overlap else "plain"
        actual = driver.core(overlap=overlap).generate(prompts, greedy)
        _check(report, f"{name}, tiny, fp32, greedy, {loop}: against the CPU", actual, expected)
    sampled = SamplingParams(
        temperature=0.9, top_p=0.95, top_k=40, repetition_penalty=1.1, presence_penalty=0.2, max_tokens=num_new
    )
    _check(
        report,
        f"{name}, tiny, fp32, sampled with penalties: overlapped against plain",
        driver.core(overlap=True).generate(prompts, sampled),
        driver.core(overlap=False).generate(prompts, sampled),
    )


def _check(report: Reporter, case: str, actual: list[list[int]], expected: list[list[int]]) -> None:
    differ = sum(a != e for a, e in zip(actual, expected, strict=True))
    report.check(case, differ / len(expected), ALLOWED_DIFFERENCE, unit="of sequences differ")
