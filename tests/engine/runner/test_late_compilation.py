from __future__ import annotations

import pytest
from triton import knobs

from engine.runner.late_compilation import warn_of_late_compilation


def test_a_kernel_that_is_compiled_late_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", None)
    warn_of_late_compilation()
    hook = knobs.runtime.jit_post_compile_hook
    hook(key="k", repr="_kernel[...]", fn=None, compile={}, is_manual_warmup=False, already_compiled=False)
    assert "Triton compiled _kernel[...] after the warm-up" in caplog.text
