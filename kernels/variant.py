"""One way to compile a kernel, with no device at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CAPABILITIES = (80, 90, 100)
"""Compute capabilities that kernels are compiled for in tests: A100, H100 and H200, B200."""


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """A kernel with everything that `triton.compile` needs.

    name: the kernel's, and what tells the variant from its others. kernel: the `triton.jit` function.
    signature: by parameter, its Triton type ("*bf16", "i32", "i64", "fp32", "constexpr"). constants: values of the
    compile-time constants. aligned: parameters whose value (or address) is known to be divisible by 16.
    spills_allowed: False where a spilled register would cost more than the kernel is worth (attention).
    capabilities: the compute capabilities that it is meant for, as ten times the major and the minor number.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    aligned: frozenset[str] = field(default_factory=frozenset)
    spills_allowed: bool = True
    capabilities: tuple[int, ...] = CAPABILITIES
