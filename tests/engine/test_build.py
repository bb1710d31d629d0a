from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.build import build_engine, build_runner
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner import accelerator, device_memory, device_runner
from engine.runner.model_runner import ModelRunner
from tests.tiny_models import make_checkpoint


def test_the_cpu_runs_torchs_layers(tmp_path: Path) -> None:
    model_dir = make_checkpoint("llama", tmp_path, tokenizer=False)
    config = EngineConfig(model_dir=model_dir, device="cpu", dtype="float32", num_threads=1, num_kv_blocks=8)
    core = build_engine(config, lambda _progress: None)
    assert isinstance(core._loop._runner, ModelRunner)


def test_without_triton_the_message_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "from engine.build import build_runner; from engine.config import EngineConfig\n"
        "build_runner(EngineConfig(model_dir='m', device='cpu', attention_backend='triton'), print)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert re.search(r"ConfigError: .*package triton.*pip install triton", result.stderr), result.stderr


def test_a_gpu_that_is_too_small_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        total, free_at_start = 8 << 30, 7 << 30

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device_memory, "CudaMemory", Memory)
    monkeypatch.setattr(accelerator, "CudaAccelerator", object)
    monkeypatch.setattr(device_runner, "DeviceRunner", fail)
    config = EngineConfig(model_dir=Path("m"), device="cuda", attention_backend="triton")
    with pytest.raises(ConfigError, match=r"8192 MiB, of which 7168 MiB were free.*lower max_num_batched_tokens"):
        build_runner(config, lambda _progress: None)
