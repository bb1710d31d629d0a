"""What the Triton kernels cannot do, said before a model is loaded for them."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.config import ModelConfig

MIN_BLOCK_SIZE = 8
MAX_HEAD_DIM = 256


def check_kernel_limits(config: EngineConfig, model: ModelConfig) -> None:
    """Raises `ConfigError` for a block size or a model that the kernels do not take."""
    block_size = config.block_size
    if block_size & (block_size - 1) or block_size < MIN_BLOCK_SIZE:
        raise ConfigError(
            f"block_size is {block_size}, and the Triton kernels take 16, 32, 64 or 128: choose one of these"
        )
    if model.head_dim > MAX_HEAD_DIM:
        raise ConfigError(
            f"{model.architecture} has heads of {model.head_dim} elements, and the Triton kernels take at most"
            f" {MAX_HEAD_DIM}: use device cpu"
        )
