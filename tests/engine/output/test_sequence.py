"""engine/output/sequence.py: cases T1–T4, T7, T9, T10, U1, U3, U5–U7, L1, L5 through the processor."""

from __future__ import annotations

import random

import pytest

from engine.tokenizer import Tokenizer
from tests.engine.output.driver import feed, raw_logprobs
from tests.engine.output.test_stop_strings import slow_match
from tests.engine.tokenizer.vocabularies import byte_fallback, byte_ids, byte_level, token_id, tokenizer_of

BOTH = pytest.mark.parametrize("tokenizer", [byte_level(), byte_fallback()], ids=["byte-level", "byte-fallback"])
EOS = token_id(byte_level(), "<|end|>")
HELLO, IN, LO, THE, DOUBLE_SPACE = (token_id(byte_level(), t) for t in ("Hello", "in", "lo", "Ġthe", "ĠĠ"))


def ascii_ids(text: str) -> list[int]:
    return byte_ids(byte_level(), text.encode())


def words_tokenizer(*words: str) -> Tokenizer:
    """Every word is a token; ids in order."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    backend = Backend(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    backend.decoder = decoders.Fuse()
    return tokenizer_of(backend)


def test_T1_a_stop_string_over_four_tokens_streams_nothing() -> None:
    run = feed(words_tokenizer("DEF", "G", "HI", "J", "K"), [0, 1, 2, 3, 4], stop="DEFGHIJ")
    assert run.texts == [""]
    assert (run.deltas[0].finish_reason, run.deltas[0].stop_reason) == ("stop", "DEFGHIJ")
    assert (run.num_fed, run.to_abort) == (4, ["r/0"])


def test_T2_the_cut_is_the_same_however_the_tokens_come() -> None:
    tokenizer = words_tokenizer("alpha be", "ta", " gam", "ma delta", " more")
    results = []
    for chunks in ([], [5], [1, 2, 2], [3, 2], [2, 3]):
        run = feed(tokenizer, range(5), stop="beta gamma", chunks=chunks)
        results.append((run.result.text, run.result.token_ids, run.result.finish_reason, run.result.stop_reason))
    assert set(map(str, results)) == {str(("alpha ", [0], "stop", "beta gamma"))}


def test_T3_text_flows_with_each_token_and_no_increment_is_empty() -> None:
    run = feed(byte_level(), [HELLO, THE, *ascii_ids("Z"), *ascii_ids("Z"), IN], stop="ZZZZZZZZ")
    assert run.texts == ["Hello", " the", "ZZin"]
    assert [delta.token_ids for delta in run.deltas] == [(HELLO,), (THE,), (90, 90, IN)]


def test_T4_a_long_stop_string_one_character_a_token() -> None:
    stop = "this-is-a-stop-of-30-character"
    assert len(stop) == 30
    run = feed(byte_level(), ascii_ids("ok " + stop + "never"), stop=stop)
    assert run.texts == ["o", "k", " ", ""]
    assert (run.result.text, run.result.token_ids, run.num_fed) == ("ok ", ascii_ids("ok "), 33)


def test_T7_ignored_eos_tokens_count_and_show_nothing() -> None:
    run = feed(byte_level(), [HELLO, *[EOS] * 7], "length", ignore_eos=True)
    assert run.texts == ["Hello", ""]
    assert (len(run.result.token_ids), run.result.finish_reason) == (8, "length")


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_T9_a_stop_token_leaves_the_text_before_it_untouched(stop: tuple[str, ...]) -> None:
    run = feed(
        byte_level(), [HELLO, *ascii_ids(" ne"), EOS], "stop", stop_token_id=EOS, stop_token_ids=[EOS], stop=stop
    )
    assert run.result.text == "Hello ne"
    assert run.result.token_ids == [HELLO, *ascii_ids(" ne"), EOS]
    assert (run.result.finish_reason, run.result.stop_reason) == ("stop", EOS)


@pytest.mark.parametrize(("include", "text"), [(False, "Hello"), (True, "Hellolo")])
def test_T9_a_stop_token_that_is_not_special_shows_only_if_asked_for(include: bool, text: str) -> None:
    run = feed(
        byte_level(), [HELLO, LO], "stop", stop_token_id=LO, stop_token_ids=[LO], include_stop_str_in_output=include
    )
    assert (run.result.text, run.result.token_ids) == (text, [HELLO, LO])


def test_S6_eos_is_stop_without_a_stop_reason() -> None:
    run = feed(byte_level(), [HELLO, EOS], "stop", stop_token_id=EOS)
    assert (run.result.finish_reason, run.result.stop_reason, run.to_abort) == ("stop", None, [])


@pytest.mark.parametrize(
    ("include", "text", "num_tokens"), [(False, "Hello", 1), (True, "Hello\nUser", 6)], ids=["left out", "included"]
)
def test_T10_the_stop_string_is_in_the_text_only_if_asked_for(include: bool, text: str, num_tokens: int) -> None:
    ids = [HELLO, *ascii_ids("\nUser: x")]
    run = feed(byte_level(), ids, stop=["\nUser"], include_stop_str_in_output=include)
    assert (run.result.text, run.result.token_ids) == (text, ids[:num_tokens])


def test_a_cut_inside_a_token_keeps_that_token_and_drops_what_follows() -> None:
    tokenizer = words_tokenizer("one ", "two STOP three", " four")
    run = feed(tokenizer, [0, 1, 2], stop="STOP", chunks=[3])
    assert (run.result.text, run.result.token_ids) == ("one two ", [0, 1])


@pytest.mark.parametrize("chunks", [[], [8]])
def test_L5_log_probabilities_cover_the_returned_tokens_only(chunks: list[int]) -> None:
    ids = [HELLO, THE, *ascii_ids(" STOP"), IN]
    run = feed(byte_level(), ids, stop=" STOP", logprobs=1, chunks=chunks)
    output = run.result
    assert (output.text, output.token_ids) == ("Hello the", [HELLO, THE])
    assert output.logprobs is not None
    assert [p.sampled.token_id for p in output.logprobs] == output.token_ids
    assert "".join(p.sampled.token for p in output.logprobs) == output.text
    assert [p.text_offset for p in output.logprobs] == [0, 5]
    assert output.cumulative_logprob == pytest.approx(-(HELLO + THE) / 100)


@BOTH
def test_L5_a_broken_character_before_the_cut_is_returned_and_the_stop_string_is_not(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, b"\xe4Z")
    run = feed(tokenizer, ids, stop="Z", logprobs=0)
    assert (run.result.text, run.result.token_ids) == ("\ufffd", ids[:1])


@BOTH
def test_L1_log_probabilities_carry_the_true_bytes(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, b"\xe4\xb8\xad")
    run = feed(tokenizer, ids, logprobs=2)
    assert run.texts == ["中"]
    assert run.result.logprobs is not None
    first = run.result.logprobs[0]
    assert [list(top.bytes) for top in first.top] == [[0xE4], [0xB8]]
    assert (list(first.sampled.bytes), first.sampled.token) == ([0xE4], "bytes:\\xe4")
    assert [p.text_offset for p in run.result.logprobs] == [0, 0, 0]


def test_logprobs_zero_gives_the_sampled_token_and_no_others() -> None:
    run = feed(byte_level(), [HELLO], logprobs=0)
    assert run.result.logprobs is not None
    assert run.result.logprobs[0].top == ()
    assert run.result.logprobs[0].sampled.logprob == raw_logprobs(HELLO).logprob
    assert feed(byte_level(), [HELLO]).result.logprobs is None


def test_min_tokens_stop_strings_before_it_are_ordinary_text() -> None:
    ids = ascii_ids("a.b.c.d")
    run = feed(byte_level(), ids, stop=".", min_tokens=4)
    assert run.result.text == "a.b"
    assert run.num_fed == 4  # the second "." is token 4
    run = feed(byte_level(), ids, stop=".", min_tokens=5)
    assert (run.result.text, run.num_fed) == ("a.b.c", 6)


@pytest.mark.parametrize("reason", ["length", "stop", "abort", "error"])
def test_what_was_held_is_let_go_at_the_finish(reason: str) -> None:
    run = feed(byte_level(), ascii_ids("abSTO"), reason, stop="STOP")  # type: ignore[arg-type]
    assert run.texts == ["a", "b", "STO"]
    assert run.result.token_ids == ascii_ids("abSTO")
    assert (run.result.finish_reason, run.result.stop_reason) == (reason, None)


def test_a_stop_string_in_the_last_token_is_stop_and_needs_no_abort() -> None:
    run = feed(byte_level(), ascii_ids("ab."), "length", stop=".")
    assert (run.result.finish_reason, run.result.stop_reason, run.to_abort) == ("stop", ".", [])


def test_a_finish_without_a_token_still_ends_the_stream() -> None:
    run = feed(byte_level(), [], "error", logprobs=1)
    assert [(d.text, d.token_ids, d.logprobs, d.finish_reason) for d in run.deltas] == [("", (), (), "error")]


def test_several_stop_strings_the_first_complete_one_wins() -> None:
    run = feed(byte_level(), ascii_ids("x<<end>>"), stop=["<<end>>", "end", "<|"])
    assert (run.result.text, run.result.stop_reason) == ("x<<", "end")


@BOTH
def test_U1_byte_tokens_wait_for_their_character(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, "ď!".encode())
    run = feed(tokenizer, ids)
    assert [(d.text, d.token_ids) for d in run.deltas] == [("ď", tuple(ids[:2])), ("!", (ids[2],))]


@BOTH
def test_U3_a_stop_string_and_wide_characters(tokenizer: Tokenizer) -> None:
    text = "中文Z中ZZ文"
    run = feed(tokenizer, byte_ids(tokenizer, text.encode()), stop="ZZZ")
    assert run.texts == ["中", "文", "Z中", "ZZ文"]


@BOTH
def test_U5_one_of_three_bytes_is_flushed_at_the_finish(tokenizer: Tokenizer) -> None:
    run = feed(tokenizer, byte_ids(tokenizer, b"\xe4"), max_tokens=1)
    assert [(d.text, d.finish_reason) for d in run.deltas] == [("\ufffd", "length")]


def test_U6_a_special_token_in_the_middle_ends_nothing() -> None:
    run = feed(byte_level(), [HELLO, EOS, THE, EOS], ignore_eos=True)
    assert run.texts == ["Hello", " the", ""]
    assert run.result.token_ids == [HELLO, EOS, THE, EOS]


def test_without_a_tokenizer_ids_flow_and_there_is_no_text() -> None:
    run = feed(None, [5, 6, 7], logprobs=1)
    assert [(d.text, d.token_ids) for d in run.deltas] == [("", (5,)), ("", (6,)), ("", (7,))]
    assert run.result.logprobs is not None
    assert [p.sampled.bytes for p in run.result.logprobs] == [b""] * 3


@BOTH
def test_U7_streams_of_random_tokens_and_stop_strings_agree_with_the_whole_text(tokenizer: Tokenizer) -> None:
    """Whatever the steps: the text is the whole's up to the first stop string, tokens are those that begin before the
    cut, no increment but the last is empty, and nothing is let go that the cut would take back."""
    rng = random.Random(3)
    num_cut = 0
    for _ in range(250):
        data = "".join(rng.choices("abc中é😀", k=rng.randint(1, 14))).encode()
        ids = [*byte_ids(tokenizer, data), *rng.choices(range(tokenizer.vocab_size), k=rng.randint(0, 3))]
        stops = ["".join(rng.choices("abc中", k=rng.randint(1, 3))) for _ in range(rng.randint(0, 3))]
        whole = tokenizer.decode([97, *ids])[len(tokenizer.decode([97])) :]
        match = slow_match(stops, whole)
        expected = whole if match is None else whole[: match[1] - len(match[0])]
        num_cut += match is not None
        token_ids = None
        for _ in range(3):
            chunks = [rng.randint(1, 5) for _ in ids]
            run = feed(tokenizer, ids, stop=stops, chunks=chunks, logprobs=0)
            assert run.result.text == expected, (ids, stops, chunks)
            assert all(delta.text and delta.token_ids for delta in run.deltas[:-1])
            assert [d.finish_reason is not None for d in run.deltas] == [False] * (len(run.deltas) - 1) + [True]
            assert run.result.logprobs is not None
            assert [p.sampled.token_id for p in run.result.logprobs] == run.result.token_ids
            assert run.result.token_ids == ids[: len(run.result.token_ids)]
            assert all(p.text_offset < len(expected) for p in run.result.logprobs) or match is None
            assert token_ids in (None, run.result.token_ids)
            token_ids = run.result.token_ids
    assert num_cut > 60
