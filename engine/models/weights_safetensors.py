"""Weights of a Hugging Face folder: model.safetensors, or shards with model.safetensors.index.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOAT_TYPES = {"F32", "F16", "BF16", "F64"}


class SafetensorsSource:
    """A `WeightSource` over the safetensors files of `folder`, which stay memory-mapped while it lives."""

    def __init__(self, folder: Path) -> None:
        self.origin = str(folder)
        self._handles: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path, expected in _files(folder).items():
            handle = _open(path)
            held = set(handle.keys())
            if absent := sorted(expected - held):
                raise ModelLoadError(f"{path} lacks tensors that {_INDEX} places there: {', '.join(absent[:8])}")
            for name in expected or held:
                piece = handle.get_slice(name)
                if piece.get_dtype() not in _FLOAT_TYPES:
                    raise ModelLoadError(
                        f"{path}: tensor {name} has type {piece.get_dtype()}, which is not supported; "
                        f"supported are {', '.join(sorted(_FLOAT_TYPES))}"
                    )
                self._handles[name] = handle
                self._shapes[name] = tuple(piece.get_shape())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read_into(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self._handles[name].get_tensor(name))


def _files(folder: Path) -> dict[Path, set[str]]:
    """The files to read and the names that the index places in each (an empty set: all that the file holds)."""
    index = folder / _INDEX
    if (folder / _SINGLE).exists() and not index.exists():
        return {folder / _SINGLE: set()}
    if not index.exists():
        others = sorted(p.name for p in folder.glob("*.safetensors")) or sorted(p.name for p in folder.glob("*.bin"))
        found = f"; it holds {', '.join(others[:4])}" if others else ""
        raise ModelLoadError(f"{folder} holds neither {_SINGLE} nor {_INDEX}{found}")
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files: dict[Path, set[str]] = {}
        for name, file in weight_map.items():
            files.setdefault(folder / str(file), set()).add(str(name))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{index} is not a safetensors index: {error!r}") from error
    if absent := sorted(path.name for path in files if not path.exists()):
        raise ModelLoadError(f"{folder} lacks {', '.join(absent)}, which {_INDEX} names; download the model again")
    return files


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path} is not a readable safetensors file: {error}") from error
