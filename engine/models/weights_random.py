"""Random weights of any shape: a model without its checkpoint, to warm up or to measure speed."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_STD = 0.02
_NORM_SUFFIX = "norm.weight"


class RandomSource:
    """A `WeightSource` that makes its tensors up: normal with a deviation of 0.02, norms all 1, biases all 0.

    The same device brings the same values each time.
    """

    def __init__(self, origin: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.origin = origin
        self._shapes = shapes
        self._seeds = {name: seed for seed, name in enumerate(shapes)}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read_into(self, name: str, out: torch.Tensor) -> None:
        if name.endswith(_NORM_SUFFIX):
            out.fill_(1.0)
        elif out.dim() == 1:
            out.zero_()
        else:
            generator = torch.Generator(device=out.device).manual_seed(self._seeds[name])
            out.normal_(std=_STD, generator=generator)
