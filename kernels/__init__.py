"""Triton kernels, one a file; `kernels.reference` holds a plain-torch twin of each. Needs torch and triton 3.6 or newer."""

import os

# NOTE: must be set before triton is imported; releases differ in its default, and with it in the last bit of results.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
