"""Kernels run under Triton's interpreter here, on CPU tensors: `tests/conftest.py` sets it before triton is imported."""

from __future__ import annotations

import triton

assert triton.knobs.runtime.interpret, "triton was imported before tests/conftest.py could set TRITON_INTERPRET"
