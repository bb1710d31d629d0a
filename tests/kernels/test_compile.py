"""Every kernel compiles for the GPUs it is meant for, within their shared memory and registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import kernels
from kernels.catalogue import kernel_modules, variants
from kernels.variant import CAPABILITIES

ROOT = Path(__file__).parents[2]
SHARED_LIMIT = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
"""Bytes of shared memory that a program may take (CUDA C++ Programming Guide, technical specifications)."""


def compile_all(module: str, extent: str, capabilities: Iterable[int], cache: Path) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiling", module, extent, *map(str, capabilities)],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(lines: list[dict[str, Any]]) -> None:
    assert lines, "nothing was compiled"
    assert not [line for line in lines if "error" in line]
    assert not [line for line in lines if line["shared"] > SHARED_LIMIT[line["capability"]]]
    assert not [line for line in lines if line["spilled"] and not line["spills_allowed"]]


@pytest.mark.parametrize("module", kernel_modules())
def test_default_configurations(module: str, tmp_path: Path) -> None:
    lines = compile_all(module, "default", CAPABILITIES, tmp_path)
    check(lines)
    assert {line["capability"] for line in lines} == set(CAPABILITIES)


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "capability"),
    [
        (name, capability)
        for name, module in kernel_modules().items()
        for capability in sorted({one for variant in module.variants(True) for one in variant.capabilities})
    ],
)
def test_all_configurations(module: str, capability: int, tmp_path: Path) -> None:
    check(compile_all(module, "full", [capability], tmp_path))


def test_every_kernel_is_in_the_catalogue() -> None:
    modules = [import_module(f"kernels.{module.name}") for module in iter_modules(kernels.__path__)]
    found = {name for module in modules for name in vars(module) if name.endswith("_kernel")}
    assert found == {variant.kernel.__name__ for variant in variants()}


@pytest.mark.parametrize("module", kernel_modules())
def test_every_kernel_has_a_twin_in_plain_torch(module: str) -> None:
    reference = import_module(f"kernels.reference.{module}")
    twins = {name for name, value in vars(reference).items() if getattr(value, "__module__", "") == reference.__name__}
    assert twins & vars(kernel_modules()[module]).keys()


@pytest.mark.parametrize("full", [False, True])
def test_names_tell_variants_apart(full: bool) -> None:
    seen = [(variant.name, capability) for variant in variants(full) for capability in variant.capabilities]
    assert len(seen) == len(set(seen))
