"""How large the KV pool is, and how long a sequence may be in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_CPU_POOL_BYTES = 4 << 30
CPU_POOL_SHARE = 4
"""On the CPU, unless told otherwise, the pool takes one part in this many of the memory left."""


def block_bytes(num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of one block's keys and values in all layers."""
    return 2 * num_layers * block_size * num_kv_heads * head_dim * itemsize


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes that the KV pool may take, and in words where they come from, and what the user can do for more."""

    num_bytes: int
    source: str
    advice: str = "set kv_cache_memory higher, or lower block_size"


def cpu_budget(available: int) -> Budget:
    """min(4 GiB, a quarter of `available` bytes)."""
    num_bytes = min(MAX_CPU_POOL_BYTES, available // CPU_POOL_SHARE)
    return Budget(num_bytes, f"a quarter of the {available >> 20} MiB of memory left")


def given_budget(config: EngineConfig) -> Budget | None:
    """The bytes that the configuration gives, in `kv_cache_memory`, if it does."""
    if config.kv_cache_memory is None:
        return None
    return Budget(config.kv_cache_memory, f"kv_cache_memory={config.kv_cache_memory}")


def is_measured(config: EngineConfig) -> bool:
    """Whether the configuration leaves the pool's size to what memory there is."""
    return config.num_kv_blocks is None and config.kv_cache_memory is None


def choose_num_blocks(config: EngineConfig, bytes_per_block: int, measure: Callable[[], Budget]) -> int:
    """Usable KV blocks (the dummy block comes on top).

    `num_kv_blocks` if given; else as many as fit `kv_cache_memory`, or what `measure` says, the dummy block counted.
    Raises `ConfigError` when not even one fits.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    budget = given_budget(config) or measure()
    num_blocks = budget.num_bytes // bytes_per_block - 1
    if num_blocks < 1:
        raise ConfigError(
            f"{budget.source} gives the KV pool {max(0, budget.num_bytes) >> 20} MiB, and it needs at least"
            f" {2 * bytes_per_block} bytes (two blocks of {config.block_size} tokens); {budget.advice}"
        )
    return num_blocks


def warn_of_large_pool(num_bytes: int, available: Callable[[], int]) -> None:
    """Says in the log where a pool of `num_bytes` is more than the bytes `available`; nothing where nobody can tell.

    NOTE: the system gives such memory away and ends the process when it is written to, which may be hours later.
    """
    try:
        left = available()
    except (OSError, ConfigError):
        return
    if num_bytes > left:
        logger.warning(
            "the KV pool of %d MiB is larger than the %d MiB of memory left: the system may end this process when the "
            "pool fills; set num_kv_blocks or kv_cache_memory lower",
            num_bytes >> 20,
            left >> 20,
        )


def check_max_model_len(config: EngineConfig, model_context: int) -> None:
    """Raises `ConfigError` for a length beyond the model's context; needs no weights."""
    if config.max_model_len is not None and config.max_model_len > model_context:
        raise ConfigError(
            f"max_model_len {config.max_model_len} is longer than the model's context of {model_context} tokens; "
            "give at most that"
        )


def choose_max_model_len(config: EngineConfig, model_context: int, num_blocks: int) -> int:
    """Tokens of prompt and output that one sequence may have.

    The configured length or the model's context, clamped, with a logged message, to what the pool can hold. Raises
    `ConfigError` for a length too short for a prompt token and a new one.
    """
    wanted = model_context if config.max_model_len is None else config.max_model_len
    capacity = num_blocks * config.block_size
    if wanted > capacity:
        logger.warning(
            "max_model_len is %d instead of %d: the KV pool of %d blocks of %d tokens cannot hold a longer sequence; "
            "set num_kv_blocks, kv_cache_memory or, on a GPU, memory_utilization higher to change that",
            capacity,
            wanted,
            num_blocks,
            config.block_size,
        )
        wanted = capacity
    if wanted < 2:
        raise ConfigError("a max_model_len of 1 leaves no room for a prompt and a new token; give at least 2")
    return wanted


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can still take: MemAvailable, or less where a cgroup (v1 or v2) limits it.

    A cgroup leaves its limit minus its usage; page cache that is not in active use does not count as usage, as in
    Kubernetes' working set.
    """
    left = [_mem_available(proc)]
    for folder, limit, usage, inactive in _memory_cgroups(proc, cgroup):
        limit_bytes = _read_number(folder / limit)
        used = _read_number(folder / usage)
        if limit_bytes is None or used is None:
            continue
        left.append(max(0, limit_bytes - max(0, used - _read_stat(folder / "memory.stat", inactive))))
    return min(left)


def _mem_available(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise ConfigError("/proc/meminfo has no MemAvailable line; give num_kv_blocks or kv_cache_memory")


def _memory_cgroups(proc: Path, cgroup: Path) -> Iterator[tuple[Path, str, str, str]]:
    """(folder, limit file, usage file, statistic of inactive page cache) of the process's cgroups, up to the root.

    NOTE: a limit may sit on any ancestor. In a container the path that /proc names can lie outside of what is
    mounted: then only the mounted root is found, and that is the container's own.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroup, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = cgroup / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = root / path.lstrip("/")
        while True:
            yield folder, *names
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent


def _read_number(path: Path) -> int | None:
    """The number in a file; None where the file is absent or says `max`."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_stat(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name + " ")), 0)
