from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner.memory import (
    MAX_CPU_POOL_BYTES,
    available_memory,
    block_bytes,
    check_max_model_len,
    choose_max_model_len,
    choose_num_blocks,
    cpu_budget,
    warn_of_large_pool,
)

GIB = 1 << 30
MIB = 1 << 20


def config(**arguments: Any) -> EngineConfig:
    return EngineConfig(model_dir=Path("model"), **arguments)


def test_block_bytes_counts_keys_and_values_of_all_layers() -> None:
    assert (
        block_bytes(num_layers=30, block_size=16, num_kv_heads=3, head_dim=64, itemsize=2) == 2 * 30 * 16 * 3 * 64 * 2
    )


@pytest.mark.parametrize(
    ("arguments", "available", "expected"),
    [
        # The dummy block takes one of what fits; a number of blocks given is what is usable.
        ({}, 8 * GIB, 2 * GIB // MIB - 1),
        ({}, 400 * GIB, MAX_CPU_POOL_BYTES // MIB - 1),
        ({"kv_cache_memory": 10 * MIB}, 0, 9),
        ({"kv_cache_memory": 40 * GIB}, 0, 40 * GIB // MIB - 1),
        ({"num_kv_blocks": 5}, 0, 5),
    ],
)
def test_num_blocks(arguments: dict[str, Any], available: int, expected: int) -> None:
    assert choose_num_blocks(config(**arguments), MIB, lambda: cpu_budget(available)) == expected


@pytest.mark.parametrize(("arguments", "available"), [({}, 7 * MIB), ({"kv_cache_memory": 2 * MIB - 1}, GIB)])
def test_no_room_for_a_block_is_refused(arguments: dict[str, Any], available: int) -> None:
    with pytest.raises(ConfigError, match="kv_cache_memory"):
        choose_num_blocks(config(**arguments), MIB, lambda: cpu_budget(available))


def test_a_pool_larger_than_the_memory_left_is_told(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_large_pool(3 * GIB, lambda: 3 * GIB)
    warn_of_large_pool(3 * GIB, lambda: available_memory(Path("/nowhere")))
    assert not caplog.records
    warn_of_large_pool(3 * GIB, lambda: 2 * GIB)
    assert "3072 MiB is larger than the 2048 MiB of memory left" in caplog.text


def test_max_model_len_is_the_models_own_or_the_configured() -> None:
    assert choose_max_model_len(config(), 256, 100) == 256
    assert choose_max_model_len(config(max_model_len=100), 256, 100) == 100


def test_max_model_len_is_clamped_to_the_pool_with_a_message(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert choose_max_model_len(config(block_size=16), 256, 3) == 48
    assert "max_model_len is 48 instead of 256" in caplog.text
    assert "num_kv_blocks" in caplog.text


def test_max_model_len_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="context of 256"):
        check_max_model_len(config(max_model_len=257), 256)
    check_max_model_len(config(max_model_len=256), 256)
    check_max_model_len(config(), 256)


@pytest.mark.parametrize("arguments", [{"max_model_len": 1}, {"block_size": 1}])
def test_max_model_len_without_room_for_a_new_token_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        choose_max_model_len(config(**arguments), 256, 1)


# --- what a container leaves ---------------------------------------------------------------------------------------


def write(root: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


MEMINFO = "MemTotal: 64000000 kB\nMemFree: 1 kB\nMemAvailable: 1048576 kB"

V1 = "9:name=systemd:/\n4:cpuset:/\n3:memory:{path}\n0::/"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, GIB, id="no cgroup file system"),
        pytest.param(
            {"proc/self/cgroup": "0::/", "cg/memory.max": 300 * MIB, "cg/memory.current": 100 * MIB},
            200 * MIB,
            id="v2, a container sees its own root",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/a/b", "cg/a/b/memory.max": "max", "cg/a/memory.max": 300 * MIB}
            | {"cg/a/memory.current": 90 * MIB, "cg/a/b/memory.current": 80 * MIB},
            210 * MIB,
            id="v2, the limit is the parent's",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/", "cg/memory.max": 300 * MIB, "cg/memory.current": 290 * MIB}
            | {"cg/memory.stat": f"anon 5\ninactive_file {250 * MIB}\nactive_file 7"},
            260 * MIB,
            id="v2, idle page cache is not usage",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/", "cg/memory.max": 100 * MIB, "cg/memory.current": 120 * MIB},
            0,
            id="v2, over its limit",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/", "cg/memory.max": 90 * GIB, "cg/memory.current": 0},
            GIB,
            id="v2, the machine has less than the limit",
        ),
        pytest.param(
            {"proc/self/cgroup": V1.format(path="/pod/c"), "cg/memory/pod/c/memory.limit_in_bytes": 300 * MIB}
            | {"cg/memory/pod/c/memory.usage_in_bytes": 100 * MIB}
            | {"cg/memory/pod/c/memory.stat": f"inactive_file 1\ntotal_inactive_file {30 * MIB}"},
            230 * MIB,
            id="v1",
        ),
        pytest.param(
            {"proc/self/cgroup": V1.format(path="/docker/outside"), "cg/memory/memory.limit_in_bytes": 300 * MIB}
            | {"cg/memory/memory.usage_in_bytes": 100 * MIB},
            200 * MIB,
            id="v1, only the container's root is mounted",
        ),
        pytest.param(
            {"proc/self/cgroup": V1.format(path="/"), "cg/memory/memory.limit_in_bytes": 9223372036854771712}
            | {"cg/memory/memory.usage_in_bytes": 100 * MIB},
            GIB,
            id="v1, no limit",
        ),
    ],
)
def test_available_memory(files: dict[str, object], expected: int, tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": MEMINFO, **files})
    assert available_memory(tmp_path / "proc", tmp_path / "cg") == expected


def test_available_memory_of_this_machine() -> None:
    assert 1 * MIB < available_memory() < 1 << 50
