"""Triton's interpreter, for each test process that imports a kernel: no GPU is here, and an import cannot be undone."""

from __future__ import annotations

import os
import sys


def use_interpreter() -> None:
    """Has triton run kernels on CPU tensors in this process. To be called before anything imports it."""
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before TRITON_INTERPRET was set")
    os.environ["TRITON_INTERPRET"] = "1"
