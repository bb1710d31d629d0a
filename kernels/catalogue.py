"""All kernels of the package, found by listing it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import kernels
from kernels.variant import KernelVariant


def kernel_modules() -> dict[str, ModuleType]:
    """The modules that hold kernels, by name: those with a function `variants`."""
    modules = {
        module.name: import_module(f"kernels.{module.name}")
        for module in iter_modules(kernels.__path__)
        if not module.ispkg and module.name != "catalogue"
    }
    return {name: module for name, module in sorted(modules.items()) if hasattr(module, "variants")}


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """Every kernel's default configurations; with full, all that it may be launched with."""
    for module in kernel_modules().values():
        yield from module.variants(full)
