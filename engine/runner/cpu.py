"""How many CPUs the model may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that this process may keep busy: its affinity, and the container's quota rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return count if quota is None else max(1, min(count, quota))


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
