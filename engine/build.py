"""Puts an engine together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.errors import ConfigError
from engine.kernel_cache import check_cache_folder
from engine.messages import LoadProgress
from engine.runner.choice import resolve
from engine.runner.model_runner import ModelRunner

if TYPE_CHECKING:
    from engine.runner.device_runner import DeviceRunner


def build_engine(config: EngineConfig, progress: Callable[[LoadProgress], None]) -> EngineCore:
    """Loads the model and returns an engine core over it, ready for `handle` and `step`.

    progress: called as loading goes on. Raises `ModelLoadError` and `ConfigError`.
    """
    config = resolve(config)
    runner = build_runner(config, progress)
    return EngineCore(config, runner.info, runner)


def build_runner(config: EngineConfig, progress: Callable[[LoadProgress], None]) -> ModelRunner | DeviceRunner:
    """The runner of a configuration whose device and back end are decided. Raises as `build_engine`."""
    if config.attention_backend == "torch":
        return ModelRunner(config, progress)
    # NOTE: imported here, so that triton comes in only where it is used.
    try:
        from engine.runner.accelerator import CudaAccelerator, HostAccelerator
        from engine.runner.device_memory import CudaMemory
        from engine.runner.device_runner import DeviceRunner
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the triton back end needs the Python package {error.name}, which is not installed: torch's CUDA build"
            " brings triton along; else `pip install triton`"
        ) from error

    if config.device == "cpu":
        return DeviceRunner(config, progress, HostAccelerator(), None)
    check_cache_folder()
    memory = CudaMemory()
    try:
        return DeviceRunner(config, progress, CudaAccelerator(), memory)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU's memory is too small for this model with these flags ({memory.total >> 20} MiB, of which"
            f" {memory.free_at_start >> 20} MiB were free): lower max_num_batched_tokens, max_num_seqs,"
            " memory_utilization, or num_kv_blocks and kv_cache_memory where given, or use a larger GPU."
            f" {error}"
        ) from error
