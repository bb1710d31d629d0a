from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError


def test_an_unknown_argument_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"gpu_count.*block_size"):
        EngineConfig.from_kwargs(model_dir="m", gpu_count=1)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"max_num_seqs": 0},
        {"block_size": 257},
        {"block_size": "16"},
        {"dtype": "int4"},
        {"device": "tpu"},
        {"num_kv_blocks": 1, "kv_cache_memory": 1},
        {"aging_seconds": 0},
        {"aging_seconds": "10"},
        {"enable_prefix_caching": 1},
        {"num_threads": True},
        {"num_threads": 100_000},
        {"attention_backend": "flash"},
        {"load_format": "gguf"},
        {"cuda_graphs": "yes"},
        {"memory_utilization": 0},
        {"memory_utilization": 1.5},
        {"memory_utilization": True},
        {"memory_utilization": "0.9"},
        {"max_num_batched_tokens": 0},
    ],
)
def test_a_bad_value_is_refused(kwargs: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(kwargs))):
        EngineConfig.from_kwargs(model_dir="m", **kwargs)


def test_the_model_folder_becomes_a_path() -> None:
    assert EngineConfig.from_kwargs(model_dir="a/b").model_dir == Path("a/b")
