"""Arithmetic of sizes on the host.

NOTE: Triton's own `cdiv` and `next_power_of_2` may also be called within kernels, and take microseconds here; a step
that is not recorded needs fifteen of them a layer.
"""

from __future__ import annotations


def cdiv(total: int, part: int) -> int:
    """Parts of the size `part` that hold `total`."""
    return -(-total // part)


def next_power_of_2(size: int) -> int:
    """The least power of two that is not below `size`, a positive number."""
    return 1 << (size - 1).bit_length()
