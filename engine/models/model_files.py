"""Finds out what a model path holds: a Hugging Face folder or a GGUF file (no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """path: the folder with config.json ("hf"), or the `.gguf` file ("gguf")."""

    kind: Literal["hf", "gguf"]
    path: Path


def find_model_files(model_dir: Path) -> ModelFiles:
    """What `model_dir` holds. Raises `ModelLoadError` where that is nothing, or not clear."""
    if model_dir.is_file():
        if model_dir.suffix.lower() == ".gguf":
            return ModelFiles("gguf", model_dir)
        raise ModelLoadError(f"{model_dir} is a file but not a .gguf file; give a model folder or a .gguf file")
    if not model_dir.is_dir():
        raise ModelLoadError(f"{model_dir} does not exist; give a Hugging Face model folder or a .gguf file")
    if (model_dir / "config.json").exists():
        return ModelFiles("hf", model_dir)
    gguf_files = sorted(p for p in model_dir.iterdir() if p.suffix.lower() == ".gguf" and p.is_file())
    if len(gguf_files) == 1:
        return ModelFiles("gguf", gguf_files[0])
    if gguf_files:
        names = ", ".join(p.name for p in gguf_files)
        raise ModelLoadError(f"{model_dir} holds several .gguf files ({names}); give the path of one of them")
    raise ModelLoadError(f"{model_dir} holds neither a config.json nor a .gguf file")
