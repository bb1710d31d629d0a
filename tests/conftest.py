"""How pytest-xdist spreads the tests over its workers, and Triton's interpreter for all of them."""

from __future__ import annotations

import os
from typing import Any

import pytest

# NOTE: must be set before triton is imported, which transformers does too: kernels then run on CPU tensors. What
# compiles them runs in a subprocess without it.
os.environ["TRITON_INTERPRET"] = "1"

TOGETHER = ("tests/e2e/", "tests/prometheus/", "tests/engine/test_client.py", "tests/engine/test_llm.py")
"""Each of these runs in one worker: its tests share servers or engines that take seconds to start."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # NOTE: xdist 3.8 hands its groups over in `item._nodeid`, which pytest 9.2 no longer reads: the mark xdist_group
    # has no effect, so the groups are made here, from the paths.
    from xdist.scheduler import LoadScopeScheduling

    class ByPath(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((path for path in TOGETHER if nodeid.startswith(path)), nodeid)

    return ByPath(config, log) if config.getvalue("dist") == "loadgroup" else None
