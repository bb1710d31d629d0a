"""The seam between weight files and models: tensors by Hugging Face's names, checked before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch

from engine.errors import ModelLoadError

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total)."""

_NAMES_SHOWN = 8


class WeightSource(Protocol):
    """The tensors of one checkpoint. `origin` names it in messages."""

    origin: str

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor by Hugging Face's name (a name of its own where the file has one that maps to none)."""
        ...

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Writes one tensor into `out`, of the same shape and any floating-point dtype, on any device."""
        ...


class WeightLoader:
    """Reads tensors of a source in the dtype of the model, to its device, and reports progress.

    NOTE: a tensor is allocated where it stays and filled there, so the host never holds more than the one being read.
    """

    def __init__(self, source: WeightSource, dtype: torch.dtype, device: torch.device, progress: Progress) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._shapes: Mapping[str, tuple[int, ...]] = {}
        self._done = 0

    def expect(self, shapes: Mapping[str, tuple[int, ...]], ignorable: Callable[[str], bool]) -> None:
        """Checks that the source holds exactly the tensors `shapes` (and perhaps ignorable ones).

        Raises `ModelLoadError` that names the missing, the unexpected or the misshapen ones.
        """
        found = self._source.shapes()
        if missing := [name for name in shapes if name not in found]:
            raise ModelLoadError(f"{self._source.origin}: missing tensors: {_listed(missing)}")
        if unexpected := [name for name in found if name not in shapes and not ignorable(name)]:
            raise ModelLoadError(
                f"{self._source.origin}: tensors that the configuration does not account for: {_listed(unexpected)}"
            )
        for name, shape in shapes.items():
            if found[name] != shape:
                raise ModelLoadError(
                    f"{self._source.origin}: tensor {name} has shape {list(found[name])}, "
                    f"but the configuration asks for {list(shape)}"
                )
        self._shapes = shapes
        self._done = 0
        self._report()

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, of the model's dtype."""
        return self.fused((name,))

    def fused(self, names: Iterable[str]) -> torch.Tensor:
        """The tensors one below the other in a single new one, of the model's dtype."""
        names = tuple(names)
        rows = [self._shapes[name][0] for name in names]
        fused = torch.empty((sum(rows), *self._shapes[names[0]][1:]), dtype=self._dtype, device=self._device)
        for name, part in zip(names, torch.split(fused, rows), strict=True):
            self._source.read_into(name, part)
            self._done += 1
            self._report()
        return fused

    def _report(self) -> None:
        self._progress("loading weights", self._done, len(self._shapes))


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
