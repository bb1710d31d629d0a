"""Bytes behind replacement characters."""

from __future__ import annotations

import random

import pytest

from predictor.oip.exact_text import exact_bytes
from tests.fake_engine import FakeTokenizer


def exact(text: str, raw: bytes, *, skip: bool = True, extra: tuple[int, ...] = ()) -> bytes:
    ids = [*raw, *extra]
    return exact_bytes(text, ids, FakeTokenizer(), skip_special_tokens=skip)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "raw",
    [
        b"plain",
        b"\xff",
        b"a\xffb",
        b"\xe4\xbd",
        b"a\xe4\xbdb\xf0\x9f\x98",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        "\ufffd".encode(),
    ],
)
def test_the_whole_text_gives_all_bytes(raw: bytes) -> None:
    assert exact(raw.decode("utf-8", "replace"), raw) == raw


def test_a_text_cut_at_a_stop_string_gives_the_bytes_before_it() -> None:
    assert exact("a\ufffdb", b"a\xffbSTOP") == b"a\xffb"


def test_special_tokens_count_where_they_are_shown() -> None:
    assert exact("\ufffd", b"\xff", extra=(256,)) == b"\xff"
    assert exact("\ufffd<eos>", b"\xff", extra=(256,), skip=False) == b"\xff<eos>"


def test_a_leading_space_that_the_text_has_not() -> None:
    assert exact("a\ufffd", b" a\xff") == b"a\xff"


def test_a_text_that_began_in_the_prompt_keeps_its_utf8() -> None:
    assert exact("\u4f60\ufffd", b"\xa0\xff") == "\u4f60\ufffd".encode()


def test_random_bytes_come_back() -> None:
    rng = random.Random(5)
    for _ in range(500):
        raw = bytes(rng.choice(b"a\xe4\xbd\xa0\xf0\x9f\xff\xc3\x80") for _ in range(rng.randrange(12)))
        assert exact(raw.decode("utf-8", "replace"), raw) == raw
