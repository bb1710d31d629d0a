"""Typed access to the keys of a configuration, with errors that name the key and the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.errors import ModelLoadError


class ConfigFields:
    """A mapping of keys with an origin for messages; a key that is absent or null takes the default.

    Every getter raises `ModelLoadError` for a value of the wrong type or sign, and for an absent key without default.
    """

    def __init__(self, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.origin = origin

    def raw(self, key: str, default: Any = None) -> Any:
        value = self._values.get(self._prefix + key)
        return default if value is None else value

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self._values

    def fail(self, key: str, problem: str) -> ModelLoadError:
        """The error that says what is wrong with `key`."""
        return ModelLoadError(f"{self.origin}: {self._prefix}{key} {problem}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.raw(key, default)
        if value is None:
            raise self.fail(key, "is missing; the file is incomplete or not a language model's configuration")
        return value

    def positive_int(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(key, f"must be a positive whole number, got {value!r}")
        return value

    def positive_float(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.fail(key, f"must be a positive number, got {value!r}")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"must be true or false, got {value!r}")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"must be a string, got {value!r}")
        return value

    def optional_string(self, key: str) -> str | None:
        return None if self.raw(key) is None else self.string(key)

    def optional_positive_int(self, key: str) -> int | None:
        return None if self.raw(key) is None else self.positive_int(key)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """A token id or a list of them; empty when absent."""
        value = self.raw(key, ())
        ids = value if isinstance(value, list | tuple) else (value,)
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self.fail(key, f"must be a token id or a list of token ids, got {value!r}")
        return tuple(ids)
