"""What a model path holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ModelLoadError
from engine.models.model_files import ModelFiles, find_model_files


def test_hugging_face_folder_wins_over_a_gguf_beside_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "m.gguf").touch()
    assert find_model_files(tmp_path) == ModelFiles("hf", tmp_path)


def test_gguf_by_path_and_alone_in_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "M.GGUF"
    file.touch()
    assert find_model_files(file) == ModelFiles("gguf", file)
    assert find_model_files(tmp_path) == ModelFiles("gguf", file)


def test_refusals_say_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds neither a config\.json nor a \.gguf file"):
        find_model_files(tmp_path)
    with pytest.raises(ModelLoadError, match="does not exist"):
        find_model_files(tmp_path / "nowhere")
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelLoadError, match=r"is a file but not a \.gguf file"):
        find_model_files(tmp_path / "model.bin")
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"several \.gguf files \(a\.gguf, b\.gguf\)"):
        find_model_files(tmp_path)
