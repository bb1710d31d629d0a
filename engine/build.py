"""Puts an engine together."""

from __future__ import annotations

from collections.abc import Callable

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.messages import LoadProgress
from engine.runner.model_runner import ModelRunner


def build_engine(config: EngineConfig, progress: Callable[[LoadProgress], None]) -> EngineCore:
    """Loads the model and returns an engine core over it, ready for `handle` and `step`.

    progress: called as loading goes on. Raises `ModelLoadError` and `ConfigError`.
    """
    runner = ModelRunner(config, progress)
    return EngineCore(config, runner.info, runner)
