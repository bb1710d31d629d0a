from __future__ import annotations

from pathlib import Path

import pytest
from triton import knobs

from engine.config import EngineConfig
from engine.runner.accelerator import HostAccelerator
from engine.runner.device_runner import DeviceRunner
from engine.runner.late_compilation import expect_compilation, warn_of_late_compilation
from tests.tiny_models import make_checkpoint


def test_a_kernel_that_is_compiled_late_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", None)
    warn_of_late_compilation()
    hook = knobs.runtime.jit_post_compile_hook
    hook(key="k", repr="_kernel[...]", fn=None, compile={}, is_manual_warmup=False, already_compiled=False)
    assert "Triton compiled _kernel[...] after the warm-up" in caplog.text


def test_a_second_engine_in_the_process_warms_up_without_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", None)
    warn_of_late_compilation()
    seen: list[object] = []

    def look(*_: object) -> None:
        seen.append(knobs.runtime.jit_post_compile_hook)

    monkeypatch.setattr(DeviceRunner, "_warm_up", look)
    model_dir = make_checkpoint("llama", tmp_path, tokenizer=False)
    config = EngineConfig(
        model_dir=model_dir, attention_backend="triton", num_kv_blocks=4, num_threads=1, cuda_graphs=False
    )
    DeviceRunner(config, lambda _progress: None, HostAccelerator(), None)
    assert seen == [None]


def test_a_hook_of_somebody_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(**_: object) -> None: ...

    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", other)
    expect_compilation()
    assert knobs.runtime.jit_post_compile_hook is other
