from __future__ import annotations

import triton

from kernels.sizes import cdiv, next_power_of_2


def test_they_are_tritons() -> None:
    for size in (*range(1, 300), 4095, 4096, 4097, 128256, 2**31 + 1):
        assert next_power_of_2(size) == triton.next_power_of_2(size)
        for part in (1, 2, 3, 16, 4096):
            assert cdiv(size, part) == triton.cdiv(size, part)
    assert cdiv(0, 4) == 0
