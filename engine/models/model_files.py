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
        if is_gguf(model_dir):
            return ModelFiles("gguf", model_dir)
        raise ModelLoadError(f"{model_dir} is a file but not a .gguf file; give a model folder or a .gguf file")
    if not model_dir.is_dir():
        raise ModelLoadError(f"{model_dir} does not exist; give a Hugging Face model folder or a .gguf file")
    if (model_dir / "config.json").exists():
        return ModelFiles("hf", model_dir)
    if (file := find_gguf(model_dir)) is not None:
        return ModelFiles("gguf", file)
    raise ModelLoadError(f"{model_dir} holds neither a config.json nor a .gguf file")


def find_gguf(folder: Path) -> Path | None:
    """The one GGUF file in a folder, None where there is none. Raises `ModelLoadError` for several."""
    files = sorted(path for path in folder.iterdir() if is_gguf(path) and path.is_file())
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise ModelLoadError(f"{folder} holds several .gguf files ({names}); give the path of one of them")
    return files[0] if files else None


def is_gguf(path: Path) -> bool:
    """By its name, in any case."""
    return path.suffix.lower() == ".gguf"
