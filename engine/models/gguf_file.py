"""Reads the header of a GGUF file: metadata and where each tensor lies (no torch, and not the gguf package).

Layout: the GGUF specification, versions 2 and 3, in ggml's docs/gguf.md. The gguf package's own reader takes seconds
for a vocabulary of usual size, because it keeps a NumPy view of every string.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY, _BOOL = 8, 9, 7
_MAX_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class TensorType:
    """How values are stored: `block_bytes` bytes for every `block_size` values of a row."""

    name: str
    block_size: int
    block_bytes: int


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}
"""The supported types by their number in the file."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """shape: slowest dimension first, as torch counts. offset: bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    num_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.type.block_size * self.type.block_bytes


class GgufFile:
    """The header of the file at `path`, which stays memory-mapped while this object or a view of it lives.

    Raises `ModelLoadError` for a file that is not GGUF, is cut short, or holds a tensor of an unsupported type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
        self.metadata: Mapping[str, Any]
        self.tensors: Mapping[str, GgufTensor]
        cursor = _Cursor(self._map, path)
        if cursor.take(4) != _MAGIC:
            raise ModelLoadError(f"{path} is not a GGUF file")
        version = cursor.number("I")
        if version not in _VERSIONS:
            raise ModelLoadError(f"{path}: GGUF version {version} (or byte order) is not supported, only 2 and 3")
        num_tensors, num_values = cursor.number("Q"), cursor.number("Q")
        metadata = {}
        for _ in range(num_values):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.number("I"))
        self.metadata = metadata
        if metadata.get("split.count", 1) > 1:
            raise ModelLoadError(
                f"{path} is one part of a split model; join the parts first (llama-gguf-split --merge)"
            )
        tensors = [cursor.tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelLoadError(f"{path} is damaged: general.alignment is {alignment!r}")
        start = -(-cursor.position // alignment) * alignment
        self.tensors = {name: self._place(name, shape, kind, start + offset) for name, shape, kind, offset in tensors}

    def data(self, tensor: GgufTensor) -> memoryview:
        """The stored bytes of a tensor, read-only, not copied."""
        return memoryview(self._map)[tensor.offset : tensor.offset + tensor.num_bytes]

    def _place(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
        tensor_type = TENSOR_TYPES.get(kind)
        if tensor_type is None:
            supported = ", ".join(t.name for t in TENSOR_TYPES.values())
            raise ModelLoadError(
                f"{self.path}: tensor {name} has GGML type {kind}, which is not supported; supported are {supported}"
            )
        if not shape or shape[-1] % tensor_type.block_size:
            raise ModelLoadError(f"{self.path}: tensor {name} of shape {list(shape)} cannot be {tensor_type.name}")
        num_bytes = math.prod(shape) // tensor_type.block_size * tensor_type.block_bytes
        if offset + num_bytes > len(self._map):
            raise ModelLoadError(f"{self.path} is cut short: it ends before tensor {name}; download it again")
        return GgufTensor(name, shape, tensor_type, offset, num_bytes)


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.position = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            raise ModelLoadError(f"{self._path} is cut short: its header is incomplete; download it again")
        chunk = self._data[self.position : end]
        self.position = end
        return chunk

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        # NOTE: vocabularies hold tokens that are not valid UTF-8 on their own; they must not stop the load.
        return self.take(self.number("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, count = self.number("I"), self.number("Q")
            if item_kind in _SCALARS:
                code = _SCALARS[item_kind]
                size = struct.calcsize("<" + code)
                return list(struct.unpack(f"<{count}{code}", self.take(count * size)))
            return [self.value(item_kind) for _ in range(count)]
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        raise ModelLoadError(f"{self._path} is damaged: metadata value of unknown type {kind}")

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape (slowest dimension first), type number, and offset from the start of the tensor data."""
        name = self.string()
        num_dimensions = self.number("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise ModelLoadError(f"{self._path} is damaged: tensor {name!r} has {num_dimensions} dimensions")
        shape = tuple(self.number("Q") for _ in range(num_dimensions))[::-1]
        return name, shape, self.number("I"), self.number("Q")
