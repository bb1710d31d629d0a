"""Device and back end on machines of all kinds."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner import choice
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
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
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
def test_a_gpu_of_another_maker_is_not_taken_for_one_of_nvidias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert resolved() == ("cpu", "torch")
    with pytest.raises(ConfigError, match="build without CUDA"):
        resolved(device="cuda")


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(ConfigError, match=r"Test GPU has compute capability 7\.5.*Ampere"):
        resolved()


@pytest.mark.usefixtures("no_gpu")
def test_why_torch_sees_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build without CUDA, a driver that is too old, a list of devices: the last alone need not be why."""

    def fail() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ConfigError, match=r"\(torch .* is a build without CUDA\)"):
        resolved(device="cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(ConfigError, match=r"\(The NVIDIA driver on your system is too old\)"):
        resolved(device="cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ConfigError, match=r"\(CUDA_VISIBLE_DEVICES is '0'; The NVIDIA driver .* is too old\)"):
        resolved(device="cuda")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("has_driver", [True, False])
def test_a_gpu_that_torch_does_not_see_is_not_passed_over_in_silence(
    has_driver: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choice, "DRIVER_FILE", tmp_path if has_driver else tmp_path / "none")
    with caplog.at_level(logging.WARNING):
        assert resolved() == ("cpu", "torch")
    assert ("device auto is the CPU, though NVIDIA's driver is here" in caplog.text) == has_driver


@pytest.mark.usefixtures("gpu")
def test_the_device_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        resolved()
    assert "device: Test GPU, cuda:0 of 2" in caplog.text


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_cannot_be_used_is_said_with_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "get_device_capability", fail)
    with pytest.raises(ConfigError, match=r"nvidia-smi.*busy or unavailable"):
        resolved()


@pytest.mark.usefixtures("gpu")
def test_the_tokens_of_a_step_follow_the_device() -> None:
    config = EngineConfig(model_dir=Path("m"))
    assert resolve(config).step_tokens == 8192
    assert EngineConfig(model_dir=Path("m"), device="cpu").step_tokens == 2048
    assert EngineConfig(model_dir=Path("m"), max_num_batched_tokens=5).step_tokens == 5
