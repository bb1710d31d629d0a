from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.registry import read_config
from engine.runner.kernel_limits import check_kernel_limits
from tests.tiny_models import make_checkpoint


def test_limits(tmp_path: Path) -> None:
    model = read_config(make_checkpoint("llama", tmp_path, tokenizer=False))
    for block_size in (8, 16, 32, 64, 128, 256):
        check_kernel_limits(EngineConfig(model_dir=tmp_path, block_size=block_size), model)
    for block_size in (1, 4, 12, 17, 255):
        with pytest.raises(ConfigError, match=f"block_size is {block_size}.*powers of two from 8 to 256"):
            check_kernel_limits(EngineConfig(model_dir=tmp_path, block_size=block_size), model)
    with pytest.raises(ConfigError, match=r"heads of 512 elements.*use device cpu"):
        check_kernel_limits(EngineConfig(model_dir=tmp_path), replace(model, head_dim=512))
