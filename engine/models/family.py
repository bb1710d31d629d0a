"""A model family: everything the shared decoder and the readers need to know about it (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.models.config import FamilyTraits
from engine.models.config_fields import ConfigFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of decoder models.

    architectures: values of config.json's `architectures` that this family serves.
    defaults: values of config.json keys that its files may leave out.
    read_traits: from config.json's fields (defaults filled in) and the number of layers to the family's traits.
    gguf_architectures: values of `general.architecture` in GGUF files.
    gguf_interleaved_rope: the GGUF files of this family hold the rows of q and k in the order of interleaved rotation
        (pairs side by side), as llama.cpp's converter leaves them for its "llama" architecture.
    qk_norm: whether q and k heads are normed (all models of the family).
    """

    name: str
    architectures: tuple[str, ...]
    read_traits: Callable[[ConfigFields, int], FamilyTraits]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    gguf_architectures: tuple[str, ...] = ()
    gguf_interleaved_rope: bool = False
    qk_norm: bool = False


def all_layers_see_all(num_layers: int) -> tuple[int | None, ...]:
    return (None,) * num_layers


def mixed_windows(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Windows of the Qwen families: `layer_types`, or without it the layers from `max_window_layers` on.

    Nothing slides unless `use_sliding_window` is true.
    """
    window = fields.optional_positive_int("sliding_window")
    if not fields.boolean("use_sliding_window", False):
        window = None
    layer_types = fields.raw("layer_types")
    if layer_types is None:
        first = fields.raw("max_window_layers", num_layers)
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise fields.fail("max_window_layers", f"must be a whole number of at least 0, got {first!r}")
        return tuple(window if layer >= first else None for layer in range(num_layers))
    known = {"full_attention", "sliding_attention"}
    if not isinstance(layer_types, list) or len(layer_types) != num_layers or not known.issuperset(layer_types):
        raise fields.fail(
            "layer_types", f"must list full_attention or sliding_attention for each of {num_layers} layers"
        )
    if window is None and "sliding_attention" in layer_types:
        raise fields.fail(
            "layer_types", "names sliding_attention, but sliding_window is not set or use_sliding_window is false"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
