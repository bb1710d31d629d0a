"""Which device and which back end a configuration means on this machine."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from engine.config import AttentionBackendName, DeviceName, EngineConfig
from engine.errors import ConfigError

MIN_CAPABILITY = (8, 0)
"""CUDA compute capability that the kernels need."""


def resolve(config: EngineConfig) -> EngineConfig:
    """The configuration with `device` and `attention_backend` decided.

    Raises `ConfigError` for a device that is not there, and for a back end that does not run on it.
    """
    device = _device(config.device)
    backend = _backend(config.attention_backend, device)
    return replace(config, device=device, attention_backend=backend)


def _device(wanted: DeviceName) -> DeviceName:
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        build = "" if torch.version.cuda else f" (torch {torch.__version__} is a build without CUDA)"
        raise ConfigError(
            f"device is cuda, but torch sees no CUDA device here{build}: give the container a GPU and a torch built for"
            " CUDA, or use device cpu"
        )
    device: DeviceName = wanted if wanted != "auto" else "cuda" if has_cuda else "cpu"
    if device == "cuda" and (capability := torch.cuda.get_device_capability()) < MIN_CAPABILITY:
        raise ConfigError(
            f"{torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}, and the kernels"
            f" need {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} (Ampere) or newer: use another GPU, or device cpu"
        )
    return device


def _backend(wanted: AttentionBackendName, device: DeviceName) -> AttentionBackendName:
    if device == "cuda":
        if wanted == "torch":
            raise ConfigError("attention_backend torch runs on the CPU only: use triton (or auto) on a CUDA device")
        if is_interpreted():
            raise ConfigError(
                "TRITON_INTERPRET is set in the environment, and would run the GPU's kernels in Triton's interpreter:"
                " unset it, or use device cpu"
            )
        return "triton"
    if wanted == "triton" and not is_interpreted():
        raise ConfigError(
            "attention_backend triton runs on a CUDA device; on the CPU it runs only under Triton's interpreter, which"
            " is for tests: use torch (or auto), or set TRITON_INTERPRET=1"
        )
    return "triton" if wanted == "triton" else "torch"


def is_interpreted() -> bool:
    """Whether Triton's kernels run under its interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in {"1", "true", "yes", "on", "y", "t"}
