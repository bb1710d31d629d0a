"""Bytes behind replacement characters."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from predictor.oip.exact_text import ExactText, exact_bytes
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


def test_characters_that_a_window_cuts_are_whole() -> None:
    raw = b"\xff" + "\u4f60".encode() * 1000 + b"\xe4\xbd"
    assert exact(raw.decode("utf-8", "replace"), raw) == raw


def test_random_pieces_add_up_to_the_bytes() -> None:
    rng = random.Random(6)
    for _ in range(300):
        raw = bytes(rng.choice(b"a \xe4\xbd\xa0\xf0\x9f\xff\xc3\x80") for _ in range(rng.randrange(12)))
        whole = raw.decode("utf-8", "replace")
        text = whole.removeprefix(" ") if rng.random() < 0.3 else whole
        pieces = ExactText(FakeTokenizer(), skip_special_tokens=True)  # type: ignore[arg-type]
        cut = rng.randrange(len(text) + 1)
        assert pieces.push(text[:cut], list(raw)) + pieces.push(text[cut:], []) == exact(text, raw)


def test_a_piece_costs_what_it_holds_however_long_the_text_is() -> None:
    asked: Counter[int] = Counter()

    class Counting(FakeTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            asked[token_id] += 1
            return super().token_bytes(token_id)

    pieces = ExactText(Counting(), skip_special_tokens=True)  # type: ignore[arg-type]
    assert b"".join(pieces.push("\ufffd", [0x80]) for _ in range(100)) == b"\x80" * 100
    assert asked == {0x80: 100}
