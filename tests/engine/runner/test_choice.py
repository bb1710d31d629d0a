"""Device and back end on machines of all kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner.choice import resolve


def resolved(**arguments: Any) -> tuple[str, str]:
    config = resolve(EngineConfig(model_dir=Path("m"), **arguments))
    return config.device, config.attention_backend


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Test GPU")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu() -> None:
    assert resolved() == resolved(device="cpu", attention_backend="torch") == ("cpu", "torch")
    with pytest.raises(ConfigError, match="use device cpu"):
        resolved(device="cuda")
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        resolved(attention_backend="triton")


@pytest.mark.usefixtures("no_gpu")
def test_the_interpreter_lets_triton_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert resolved(attention_backend="triton") == ("cpu", "triton")
    assert resolved() == ("cpu", "torch")


@pytest.mark.usefixtures("gpu")
def test_with_a_gpu() -> None:
    assert resolved() == resolved(device="cuda", attention_backend="triton") == ("cuda", "triton")
    assert resolved(device="cpu") == ("cpu", "torch")
    with pytest.raises(ConfigError, match="runs on the CPU only"):
        resolved(attention_backend="torch")


@pytest.mark.usefixtures("gpu")
def test_an_interpreter_left_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert resolved(device="cpu") == ("cpu", "torch")
    with pytest.raises(ConfigError, match="unset it"):
        resolved()


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(ConfigError, match=r"Test GPU has compute capability 7\.5.*Ampere"):
        resolved()


@pytest.mark.usefixtures("gpu")
def test_the_tokens_of_a_step_follow_the_device() -> None:
    config = EngineConfig(model_dir=Path("m"))
    assert resolve(config).step_tokens == 8192
    assert EngineConfig(model_dir=Path("m"), device="cpu").step_tokens == 2048
    assert EngineConfig(model_dir=Path("m"), max_num_batched_tokens=5).step_tokens == 5
