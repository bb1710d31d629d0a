"""Triton kernels, one a file, each with a plain-torch twin in `kernels.reference`. Needs Triton 3.6 or newer."""

import os

# NOTE: must be set before triton is imported; releases differ in its default, and with it in the last bit of results.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

from kernels.interpreter import take_scalars_as_bounds

take_scalars_as_bounds()
