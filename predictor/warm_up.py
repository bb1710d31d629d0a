"""`pagedserve warmup`: fills Triton's cache, so that a server's start has nothing to compile."""

from __future__ import annotations

import subprocess
import sys

from engine import warm_up
from engine.config import EngineConfig


def run(config: EngineConfig) -> int:
    """Warms up in a process of its own, which may hold torch; returns its exit code."""
    command = [sys.executable, "-m", warm_up.__name__, warm_up.encode(config)]
    return subprocess.run(command, check=False).returncode  # noqa: S603  this Python and our own module
