"""What these kernels need of Triton's interpreter, where they run in it (`TRITON_INTERPRET`)."""

from __future__ import annotations

import triton
from triton import knobs


def take_scalars_as_bounds() -> None:
    """Lets `range` of a kernel take scalars in the interpreter of Triton 3.6 too. Nothing is changed elsewhere.

    NOTE: there a scalar is an array of one element, of which NumPy from 2.4 on makes no int. 3.7 has it right.
    """
    release = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if not knobs.runtime.interpret or release >= (3, 7):
        return
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: scalar.handle.data.item())

    interpreter._patch_lang_tensor = patch
