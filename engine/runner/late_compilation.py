"""Notices when Triton compiles while requests wait, which the warm-up is there to prevent."""

from __future__ import annotations

import logging
from typing import Any

from triton import knobs

logger = logging.getLogger(__name__)


def warn_of_late_compilation() -> None:
    """From now on a kernel that is compiled, or read from Triton's cache, is logged as a warning. Idempotent."""
    knobs.runtime.jit_post_compile_hook = _note


def expect_compilation() -> None:
    """Undoes `warn_of_late_compilation`, which an earlier engine of this process may have called: one warms up."""
    if knobs.runtime.jit_post_compile_hook is _note:
        knobs.runtime.jit_post_compile_hook = None


def _note(*, repr: str, **_: Any) -> None:  # noqa: A002  the name that Triton calls it by
    logger.warning(
        "Triton compiled %s after the warm-up: requests waited for it. Please report this, with the server's flags",
        repr,
    )
