"""Keys: how they are given, compared, and read anew."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from engine.errors import ConfigError
from predictor.api_keys import ApiKeys


def test_without_keys_there_is_nothing_to_check() -> None:
    assert not ApiKeys()
    assert not ApiKeys().accept("Bearer x")
    assert ApiKeys(["a"])


@pytest.mark.parametrize("header", ["Bearer one", "bearer two", "BEARER  one ", "Bearer two"])
def test_each_key_is_accepted(header: str) -> None:
    assert ApiKeys(["one", "two"]).accept(header)


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "one", "Basic one", "Bearer three", "Bearer on", "Bearer one two", "Bearer é"],
)
def test_all_else_is_not(header: str | None) -> None:
    assert not ApiKeys(["one", "two"]).accept(header)


@pytest.mark.parametrize("keys", [[""], ["good", ""], ["sec ret"], ["sécret"], ["secret\n"]])
def test_a_key_that_cannot_be_is_refused_and_not_shown(keys: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"api_key.*key {len(keys)}") as caught:
        ApiKeys(keys)
    assert "ret" not in str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# team a\n  one  \n\ntwo\r\n")
    return path


def test_a_file_has_comments_and_one_key_a_line(file: Path) -> None:
    keys = ApiKeys(["given"], file)
    assert all(keys.accept(f"Bearer {key}") for key in ("given", "one", "two"))
    assert not any(keys.accept(f"Bearer {key}") for key in ("#", "team", "three"))


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\ntwo\n", "utf-8-sig")
    keys = ApiKeys((), path)
    assert all(keys.accept(f"Bearer {key}") for key in ("one", "two"))


def test_a_changed_file_counts_at_once(file: Path) -> None:
    keys = ApiKeys(["given"], file)
    file.write_text("two\nthree\n")
    assert [keys.accept(f"Bearer {key}") for key in ("given", "one", "two", "three")] == [True, False, True, True]


def test_a_file_behind_a_moved_link_counts_at_once(tmp_path: Path) -> None:
    """As Kubernetes changes a mounted secret."""
    for version in ("old", "new"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(f"{version}-key\n")
    (tmp_path / "data").symlink_to("old")
    keys = ApiKeys(file=tmp_path / "data" / "keys")
    assert keys.accept("Bearer old-key")
    (tmp_path / "data.new").symlink_to("new")
    os.replace(tmp_path / "data.new", tmp_path / "data")
    assert not keys.accept("Bearer old-key")
    assert keys.accept("Bearer new-key")


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"a b\n", b"\xff\xfe"])
def test_a_file_that_cannot_be_used_is_refused_at_the_start(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"api_key_file .*keys"):
        ApiKeys(file=file)


@pytest.mark.parametrize("content", [None, b"", b"a b\n"])
def test_a_file_that_cannot_be_used_later_leaves_the_keys(
    file: Path, content: bytes | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("predictor"), "propagate", True)
    keys = ApiKeys(file=file)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert keys.accept("Bearer one")
    assert keys.accept("Bearer one")
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    file.write_text("three\n")
    assert keys.accept("Bearer three")
    assert "three" not in caplog.text
