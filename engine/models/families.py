"""Every family that can be served. A new one adds a file and a line here."""

from __future__ import annotations

from engine.errors import ModelLoadError
from engine.models.family import Family
from engine.models.llama import LLAMA
from engine.models.mistral import MISTRAL
from engine.models.qwen2 import QWEN2
from engine.models.qwen3 import QWEN3

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2, QWEN3)


def find_family(architecture: str, origin: str) -> Family:
    """The family of config.json's `architectures` entry. Raises `ModelLoadError` that lists the supported ones."""
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise ModelLoadError(f"{origin}: architecture {architecture!r} is not supported; supported are {supported}")


def find_gguf_family(architecture: str, origin: str) -> Family:
    """The family of a GGUF file's `general.architecture`. Raises `ModelLoadError` that lists the supported ones."""
    for family in FAMILIES:
        if architecture in family.gguf_architectures:
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.gguf_architectures)
    raise ModelLoadError(f"{origin}: GGUF architecture {architecture!r} is not supported; supported are {supported}")
