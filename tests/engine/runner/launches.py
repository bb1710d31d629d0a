"""Records which variants of which Triton kernels are launched, and runs none of them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from triton._C.libtriton import native_specialize_impl
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import interpreter

from engine.sampling import device_sampler
from kernels import paged_attention, tiles

Variant = tuple[object, ...]


class Launches:
    """variants: what Triton would have compiled.

    Compile-time constants decide about that, and what Triton's own function makes of the other arguments: their types,
    whole numbers by being 1 or divisible by 16, pointers by being divisible by 16. It refuses what no launch takes
    (NumPy's numbers), though the interpreter runs it.
    """

    def __init__(self) -> None:
        self.variants: set[Variant] = set()

    def note(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        bound = inspect.signature(kernel.fn).bind(*args, **{k: v for k, v in options.items() if k in kernel.arg_names})
        bound.apply_defaults()
        parameters = inspect.signature(kernel.fn).parameters
        plain = set(kernel.kwargs.get("do_not_specialize") or ())
        unaligned = set(kernel.kwargs.get("do_not_specialize_on_alignment") or ())
        key: list[object] = [kernel.fn.__name__]
        for name, value in bound.arguments.items():
            if "constexpr" in str(parameters[name].annotation):
                key.append((name, value))
            else:
                is_const, specialized, aligned = False, name not in plain, name not in unaligned
                key.append((name, native_specialize_impl(CUDABackend, value, is_const, specialized, aligned)))
        key += sorted((k, v) for k, v in options.items() if k not in kernel.arg_names and k not in {"grid", "warmup"})
        self.variants.add(tuple(key))


def record_launches(monkeypatch: pytest.MonkeyPatch, family: tiles.Family, num_sms: int) -> Launches:
    """From now on kernels are noted instead of run, as if on such a device. Every sampled token is 0."""
    launches = Launches()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launches.note(self, args, options)

    sample = device_sampler.sample_tokens
    monkeypatch.setattr(interpreter.InterpretedFunction, "run", run)
    monkeypatch.setattr(paged_attention, "device_of", lambda _device: tiles.Device(family, num_sms))
    monkeypatch.setattr(device_sampler, "sample_tokens", lambda *args, **kwargs: sample(*args, **kwargs).zero_())
    return launches
