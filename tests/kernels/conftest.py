"""Kernels run on CPU tensors here: `tests/conftest.py` sets Triton's interpreter before triton is imported."""

from __future__ import annotations

import triton

assert triton.knobs.runtime.interpret, "triton was imported before tests/conftest.py could set TRITON_INTERPRET"
