"""Which device and which back end a configuration means on this machine."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import torch

from engine.config import AttentionBackendName, DeviceName, EngineConfig
from engine.errors import ConfigError

logger = logging.getLogger(__name__)

MIN_CAPABILITY = (8, 0)
"""CUDA compute capability that the kernels need."""
DRIVER_FILE = Path("/dev/nvidiactl")
"""There where NVIDIA's driver is."""


def resolve(config: EngineConfig) -> EngineConfig:
    """The configuration with `device` and `attention_backend` decided.

    Raises `ConfigError` for a device that is not there, and for a back end that does not run on it.
    """
    device = _device(config.device)
    backend = _backend(config.attention_backend, device)
    return replace(config, device=device, attention_backend=backend)


def unusable(error: Exception) -> ConfigError:
    """What to raise where CUDA's first calls fail."""
    return ConfigError(
        "the GPU cannot be used: another process may hold all of its memory, or have it for itself alone, or the driver"
        f" may be out of order (nvidia-smi shows all three). {error}"
    )


def _device(wanted: DeviceName) -> DeviceName:
    if wanted == "cpu":
        return "cpu"
    # NOTE: a build for ROCm calls its devices cuda, too; the kernels' tiles are not made for them.
    if not torch.cuda.is_available() or torch.version.hip:
        if wanted == "cuda":
            raise ConfigError(
                f"device is cuda, but torch sees no CUDA device here{_reason()}: give the container a GPU and a torch"
                " built for CUDA, or use device cpu"
            )
        if DRIVER_FILE.exists():
            # NOTE: else nobody would see why a machine with a GPU is a hundred times too slow.
            logger.warning("device auto is the CPU, though NVIDIA's driver is here: torch sees no device%s", _reason())
        return "cpu"
    try:
        capability, name = torch.cuda.get_device_capability(), torch.cuda.get_device_name()
    except RuntimeError as error:
        raise unusable(error) from error
    if capability < MIN_CAPABILITY:
        raise ConfigError(
            f"{name} has compute capability {capability[0]}.{capability[1]}, and the kernels need"
            f" {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} (Ampere) or newer: use another GPU, or device cpu"
        )
    logger.info(
        "device: %s, cuda:%d of %d (CUDA_VISIBLE_DEVICES chooses)",
        name,
        torch.cuda.current_device(),
        torch.cuda.device_count(),
    )
    return "cuda"


def _reason() -> str:
    """In brackets, why torch sees no CUDA device, as far as it can be told."""
    if not torch.version.cuda:
        return f" (torch {torch.__version__} is a build without CUDA)"
    found: list[str] = []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        found.append(f"CUDA_VISIBLE_DEVICES is {visible!r}")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        found.append(str(error))
    return f" ({'; '.join(found)})" if found else ""


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
