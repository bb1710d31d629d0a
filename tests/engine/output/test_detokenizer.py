"""engine/output/detokenizer.py: cases U1–U3, U5–U7."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from engine.output.detokenizer import Detokenizer
from engine.tokenizer import Tokenizer
from tests.engine.tokenizer.vocabularies import (
    byte_fallback,
    byte_fallback_backend,
    byte_ids,
    byte_level,
    metaspace,
    token_id,
    tokenizer_of,
)

BOTH = pytest.mark.parametrize("tokenizer", [byte_level(), byte_fallback()], ids=["byte-level", "byte-fallback"])
EVERY = pytest.mark.parametrize(
    "tokenizer",
    [byte_level(), byte_fallback(), tokenizer_of(byte_fallback_backend(strip=False)), metaspace()],
    ids=["byte-level", "byte-fallback", "no-space-prefix", "metaspace"],
)


def pieces(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


@BOTH
def test_U1_a_character_appears_whole_with_its_last_byte(tokenizer: Tokenizer) -> None:
    assert pieces(Detokenizer(tokenizer), byte_ids(tokenizer, "ď中😀".encode())) == [
        *("", "ď"),
        *("", "", "中"),
        *("", "", "", "😀"),
        "",
    ]


@BOTH
def test_U2_a_character_begun_in_the_prompt_is_the_outputs_and_nothing_before_it_is(tokenizer: Tokenizer) -> None:
    prompt = [*tokenizer.encode("the "), *byte_ids(tokenizer, b"\xe4\xb8")]
    assert pieces(Detokenizer(tokenizer, prompt), byte_ids(tokenizer, b"\xad!")) == ["中", "!", ""]


@BOTH
def test_U2_a_character_of_the_prompt_that_does_not_go_on_says_nothing(tokenizer: Tokenizer) -> None:
    prompt = [*tokenizer.encode("the "), *byte_ids(tokenizer, b"\xe4\xb8")]
    assert pieces(Detokenizer(tokenizer, prompt), byte_ids(tokenizer, b"ok")) == ["o", "k", ""]
    assert pieces(Detokenizer(tokenizer, prompt), []) == [""]


@BOTH
def test_U2_begun_in_the_prompt_and_broken_in_the_output_is_one_replacement(tokenizer: Tokenizer) -> None:
    prompt = [*tokenizer.encode("the "), *byte_ids(tokenizer, b"\xe4")]
    assert pieces(Detokenizer(tokenizer, prompt), byte_ids(tokenizer, b"\xb8k")) == ["", "\ufffdk", ""]


@BOTH
def test_U5_an_unfinished_character_is_one_replacement_at_the_finish(tokenizer: Tokenizer) -> None:
    for data in (b"\xe4", b"\xe4\xb8", b"\xf0\x9f\x98"):
        assert pieces(Detokenizer(tokenizer), byte_ids(tokenizer, data)) == [""] * len(data) + ["\ufffd"]


def test_U6_a_special_token_in_the_middle_shows_nothing_or_its_own_text() -> None:
    tokenizer = byte_level()
    ids = [*byte_ids(tokenizer, b"a"), token_id(tokenizer, "<|end|>"), *byte_ids(tokenizer, b"b")]
    assert pieces(Detokenizer(tokenizer), ids) == ["a", "", "b", ""]
    assert pieces(Detokenizer(tokenizer, (), skip_special_tokens=False), ids) == ["a", "<|end|>", "b", ""]


def test_a_leading_space_goes_only_at_the_start_of_a_text() -> None:
    tokenizer = byte_fallback()
    the = token_id(tokenizer, "▁the")
    bos = token_id(tokenizer, "<s>")
    assert pieces(Detokenizer(tokenizer), [the, the]) == ["the", " the", ""]
    assert pieces(Detokenizer(tokenizer, [bos]), [the]) == ["the", ""]
    assert pieces(Detokenizer(tokenizer, [bos, the]), [the]) == [" the", ""]
    assert pieces(Detokenizer(tokenizer, [bos], skip_special_tokens=False), [the]) == [" the", ""]


@BOTH
def test_token_offset_passes_the_replacement_of_earlier_tokens(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    offsets = []
    for token in byte_ids(tokenizer, b"a\xe4\xb8b\xe4\xb8\xadc"):
        detokenizer.push(token)
        offsets.append(detokenizer.token_offset)
    # "a", two bytes that become U+FFFD, "b", three bytes of one character, "c"
    assert offsets == [0, 1, 1, 2, 3, 3, 3, 4]
    assert detokenizer.num_chars == 5


def random_ids(rng: random.Random, tokenizer: Tokenizer, most: int) -> list[int]:
    """Random ids, many of them bytes (alone, or of whole characters), some special, some unknown."""
    ids: list[int] = []
    for _ in range(rng.randint(0, most)):
        kind = rng.random()
        if tokenizer in {byte_level(), byte_fallback()} and kind < 0.5:
            data = rng.choice(["é", "中", "😀", "\x00"]).encode() if kind < 0.3 else rng.randbytes(rng.randint(1, 3))
            ids += byte_ids(tokenizer, data)
        else:
            ids.append(rng.randrange(tokenizer.vocab_size + 2))
    return ids


@EVERY
@pytest.mark.parametrize("skip", [True, False])
def test_U7_pieces_add_up_to_the_whole(tokenizer: Tokenizer, skip: bool) -> None:
    rng = random.Random(7)
    for _ in range(400):
        ids = random_ids(rng, tokenizer, 10)
        assert "".join(pieces(Detokenizer(tokenizer, (), skip), ids)) == tokenizer.decode(ids, skip), ids


@EVERY
@pytest.mark.parametrize("skip", [True, False])
def test_U7_the_output_is_what_the_whole_has_after_the_prompt(tokenizer: Tokenizer, skip: bool) -> None:
    rng = random.Random(8)
    num_compared = 0
    for _ in range(600):
        prompt, ids = random_ids(rng, tokenizer, 4), random_ids(rng, tokenizer, 6)
        before, whole = tokenizer.decode(prompt, skip), tokenizer.decode(prompt + ids, skip)
        if before.endswith("\ufffd"):
            continue  # perhaps inside a character: the U2 tests
        num_compared += 1
        assert before + "".join(pieces(Detokenizer(tokenizer, prompt, skip), ids)) == whole, (prompt, ids)
    assert num_compared > 250


@BOTH
def test_U7_any_split_of_good_text_between_prompt_and_output(tokenizer: Tokenizer) -> None:
    """Also inside a character, which then is the output's."""
    text = "the 中 é😀 end"
    ids = byte_ids(tokenizer, text.encode())
    for cut in range(1, len(ids) + 1):
        prompt_text = text.encode()[:cut].decode(errors="ignore")
        output = "".join(pieces(Detokenizer(tokenizer, ids[:cut]), ids[cut:]))
        assert prompt_text + output == text


def test_the_cost_of_a_token_does_not_grow_with_the_text() -> None:
    """Counts the bytes looked at, rather than time."""
    tokenizer = byte_level()
    looked_at = 0
    real = tokenizer.token_bytes

    def counting(token: int) -> bytes:
        nonlocal looked_at
        looked_at += 1
        return real(token)

    tokenizer.token_bytes = counting  # type: ignore[method-assign]
    try:
        pieces(Detokenizer(tokenizer, byte_ids(tokenizer, b"x" * 5000)), byte_ids(tokenizer, b"y" * 5000))
    finally:
        del tokenizer.token_bytes  # type: ignore[method-assign]
    assert looked_at < 5010
