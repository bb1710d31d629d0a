"""Whether a file has changed since it was read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, ...] | None
"""Changes with the file's content; None where the file cannot be found."""


def file_stamp(path: Path) -> Stamp:
    """Follows links: a mounted Kubernetes secret changes by a link that is moved to a new folder."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
