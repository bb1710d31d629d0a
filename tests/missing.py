"""A tool that a test needs and this machine lacks: the test skips, saying what is missing; in CI it fails."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Ends the test. what: what is missing, and what brings it."""
    # NOTE: a skipped test looks green, so where everything must have been installed its absence is a failure.
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what, allow_module_level=True)
