"""`benchmarks.gpu.models`: the shapes that are measured."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from benchmarks.gpu.models import CONFIGS, config_of, shape_of, write_config
from engine.models.decoder_loader import expected_tensors
from engine.models.registry import read_config

PARAMETERS = {"llama-3.1-8b": 8_030_261_248, "qwen2.5-0.5b": 494_032_768}
"""As the models' cards count them."""


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_are_those_of_the_published_models(name: str, tmp_path: Path) -> None:
    write_config(config_of(name, is_smoke=False), tmp_path)
    tensors = expected_tensors(read_config(tmp_path))
    assert sum(prod(shape) for shape in tensors.values()) == PARAMETERS[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_tiny_model_is_of_the_same_family(name: str, tmp_path: Path) -> None:
    write_config(config_of(name, is_smoke=True), tmp_path)
    config = read_config(tmp_path)
    assert config.architecture == CONFIGS[name]["architectures"][0]
    assert config.hidden_size == 64


def test_a_step_reads_each_weight_and_each_key_once() -> None:
    shape = shape_of(CONFIGS["llama-3.1-8b"])
    weights = 2 * (PARAMETERS["llama-3.1-8b"] - 128256 * 4096)
    assert shape.step_bytes(PARAMETERS["llama-3.1-8b"], 0, 0, 2) == weights
    # 128 KiB a token, as Llama 3.1 8B has it in bfloat16.
    assert shape.step_bytes(PARAMETERS["llama-3.1-8b"], 32, 1000, 2) - weights == 32 * 1000 * 131072
    tied = shape_of(CONFIGS["qwen2.5-0.5b"])
    assert tied.step_bytes(PARAMETERS["qwen2.5-0.5b"], 0, 0, 2) == 2 * PARAMETERS["qwen2.5-0.5b"]
