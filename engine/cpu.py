"""How many CPUs the model may use, and how its threads keep to them (no torch)."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

_PLACEMENT_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def usable_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that this process may keep busy: its affinity, and the container's quota rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return count if quota is None else max(1, min(count, quota))


def computes_here(device: str, drivers: Path = Path("/dev/nvidiactl")) -> bool:
    """Whether the model of a configured `device` runs on the CPU, as far as can be told before torch is imported."""
    return device == "cpu" or (device == "auto" and not drivers.exists())


def keep_threads_apart(num_threads: int | None, environ: MutableMapping[str, str] = os.environ) -> bool:
    """Has OpenMP bind each of its threads to a CPU of its own; call it before torch is imported. Says whether it did.

    num_threads: of the model; None is every usable CPU. Nothing is done where the user has placed the threads, or where
    they are fewer than the CPUs: other processes that count the same way would be bound to the same ones.

    For the engine process only: a bound main thread hands its one CPU down to every process it starts. Not where a GPU
    computes: the threads of its driver would share the CPU of the main thread, which waits for them.

    NOTE: unbound, two threads that meet at a barrier in every layer can come to share a CPU, and each then spins away
    the time slice that the other needs: beside a process that takes a third of one CPU, a decode step of SmolLM2 on
    two threads took 376 to 727 ms, against 17 to 18 ms bound (and 13 against 15 ms on an idle machine).
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    wanted = num_threads or usable_cpus()
    is_placed = any(variable in environ for variable in _PLACEMENT_VARIABLES)
    if wanted < 2 or wanted != affinity or is_placed or "torch" in sys.modules:
        return False
    environ["OMP_PROC_BIND"] = "true"
    return True


def _quota(cgroup: Path) -> int | None:
    """Whole CPUs of the CFS quota, cgroup v2 (`cpu.max`) or v1 (`cpu.cfs_quota_us`), None without one."""
    try:
        if (cgroup / "cpu.max").exists():
            quota, period = (cgroup / "cpu.max").read_text().split()
        else:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        return None if quota in {"max", "-1"} else -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None
