from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.kernel_cache import cache_folder, check_cache_folder, count_kernels


def test_kernels_are_counted_where_triton_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    assert count_kernels(cache_folder()) == 0
    check_cache_folder()
    kernel = tmp_path / "cache" / "KEY" / "kernel.cubin"
    kernel.parent.mkdir()
    kernel.touch()
    assert count_kernels(cache_folder()) == 1


def test_the_folder_without_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".triton" / "cache"
    monkeypatch.delenv("TRITON_HOME")
    assert cache_folder() == Path.home() / ".triton" / "cache"


def test_it_is_tritons_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    assert Path(knobs.cache.dir) == cache_folder()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert Path(knobs.cache.dir) == cache_folder()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match=r"set TRITON_CACHE_DIR.*emptyDir"):
        check_cache_folder()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="permission denied"):
        check_cache_folder()
