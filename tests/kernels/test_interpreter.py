"""Kernels run in the interpreters of all releases of Triton."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from kernels.interpreter import take_scalars_as_bounds


@triton.jit
def _count_kernel(out, bounds):
    total = 0
    for turn in range(tl.load(bounds), tl.load(bounds + 1)):
        total += turn
    tl.store(out, total)


def test_scalars_bound_a_loop_as_in_triton_3_6(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_tensor = interpreter._patch_lang_tensor
    seen = []

    def patch_as_3_6(tensor, scope):
        patch_tensor(tensor, scope)

        def index(scalar):
            seen.append(scalar)
            assert scalar.handle.data.ndim == 0, "NumPy makes an int of no dimension only"
            return int(scalar.handle.data)

        scope.set_attr(tensor, "__index__", index)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_as_3_6)
    out, bounds = torch.zeros(1, dtype=torch.int32), torch.tensor([2, 5], dtype=torch.int32)
    with pytest.raises(interpreter.InterpreterError, match="NumPy"):
        _count_kernel[(1,)](out, bounds)
    assert seen

    monkeypatch.setattr(triton, "__version__", "3.6.0")
    take_scalars_as_bounds()
    _count_kernel[(1,)](out, bounds)
    assert out.item() == 2 + 3 + 4


@pytest.mark.parametrize("release", ["3.7.0", "3.10.1", "4.0.0+git1"])
def test_later_releases_are_left_alone(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_tensor = interpreter._patch_lang_tensor
    monkeypatch.setattr(triton, "__version__", release)
    take_scalars_as_bounds()
    assert interpreter._patch_lang_tensor is patch_tensor
