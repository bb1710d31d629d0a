"""The key-value part of a GGUF file."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Every key of the file's metadata as Python values (arrays as lists), tensors not read.

    Reads the header straight (GGUF specification, ggml docs/gguf.md): the vocabulary's arrays take 30 ms so, some
    seconds through the gguf package's reader, which makes a numpy view of every string. Little-endian files of version
    2 and 3. Raises `ModelLoadError` for anything else, or a file cut short.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).metadata(path)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise ModelLoadError(f"{path} is a damaged GGUF file: {error!r}") from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def metadata(self, path: Path) -> dict[str, Any]:
        if self.data[:4] != MAGIC:
            raise ModelLoadError(f"{path} is not a GGUF file")
        self.position = 4
        version = self.scalar("I")
        if version not in VERSIONS:
            raise ModelLoadError(f"{path} is GGUF version {version}; little-endian versions 2 and 3 are supported")
        self.scalar("Q")  # number of tensors
        num_keys = self.scalar("Q")
        result: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self.string()
            result[key] = self.value(self.scalar("I"))
        return result

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        start = self.position + 8
        end = start + self.scalar("Q")
        if end > len(self.data):
            raise IndexError("a string runs past the end of the file")
        self.position = end
        return self.data[start:end].decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.scalar(SCALARS[kind])
        item_kind, count = self.scalar("I"), self.scalar("Q")
        if item_kind in SCALARS:
            layout = f"<{count}{SCALARS[item_kind]}"
            values = list(struct.unpack_from(layout, self.data, self.position))
            self.position += struct.calcsize(layout)
            return values
        return [self.value(item_kind) for _ in range(count)]
