"""What the Triton kernels cannot do, said before a model is loaded for them."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.config import ModelConfig

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
"""Powers of two: a key's place in its block is a few bits of its number."""
MAX_HEAD_DIM = 256


def check_kernel_limits(config: EngineConfig, model: ModelConfig) -> None:
    """Raises `ConfigError` for a block size or a model that the kernels do not take."""
    if config.block_size not in BLOCK_SIZES:
        raise ConfigError(
            f"block_size is {config.block_size}, and the Triton kernels take powers of two from {BLOCK_SIZES[0]} to"
            f" {BLOCK_SIZES[-1]}: choose one of these"
        )
    if model.head_dim > MAX_HEAD_DIM:
        raise ConfigError(
            f"{model.architecture} has heads of {model.head_dim} elements, and the Triton kernels take at most"
            f" {MAX_HEAD_DIM}: use device cpu"
        )
