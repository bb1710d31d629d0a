"""Triton's cache of compiled kernels (no torch)."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import ConfigError


def cache_folder() -> Path:
    """Where Triton keeps what it has compiled: TRITON_CACHE_DIR, or else below TRITON_HOME or the home folder."""
    folder = os.environ.get("TRITON_CACHE_DIR")
    return Path(folder) if folder else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def count_kernels(cache: Path) -> int:
    """Compiled kernels in the cache; 0 where there is none."""
    return sum(1 for _ in cache.rglob("*.cubin"))


def check_cache_folder() -> None:
    """Raises `ConfigError` where Triton could not write what it compiles (a container with a read-only root)."""
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(_refusal(cache, str(error))) from error
    if not os.access(cache, os.W_OK | os.X_OK):
        raise ConfigError(_refusal(cache, "permission denied"))


def _refusal(cache: Path, problem: str) -> str:
    return (
        f"Triton cannot write the kernels that it compiles to {cache} ({problem}): set TRITON_CACHE_DIR to a folder"
        " that this user can write, in Kubernetes an emptyDir or a claim"
    )
