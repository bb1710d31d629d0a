"""engine/output/stop_strings.py"""

from __future__ import annotations

import random

import pytest

from engine.errors import InvalidParameterError
from engine.output.stop_strings import StopStrings
from engine.sampling_params import MAX_STOP_LENGTH, SamplingParams


def slow_match(stops: list[str], text: str) -> tuple[str, int] | None:
    """The stop string that is complete first, the longest of those, and the length of text up to its end."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return max(found, key=len), end
    return None


def slow_held(stops: list[str], text: str) -> int:
    ends = (n for n in range(len(text), 0, -1) if any(s.startswith(text[-n:]) and len(s) > n for s in stops))
    return next(ends, 0)


@pytest.mark.parametrize(
    ("stops", "text", "stop", "end"),
    [
        (["abcd", "bc"], "xabcd", "bc", 4),  # complete first
        (["bc", "abc"], "xabc", "abc", 4),  # complete together: the longest
        (["aab"], "aaab", "aab", 4),
        (["a", "a"], "ba", "a", 2),
        (["\nUser"], "hi\n\nUser", "\nUser", 8),
        (["中文"], "中中文", "中文", 3),
    ],
)
def test_the_stop_string_complete_first_wins(stops: list[str], text: str, stop: str, end: int) -> None:
    _, match = StopStrings(stops).scan(StopStrings.START, text)
    assert match is not None
    assert (match.stop, match.end) == (stop, end)


def test_only_what_may_become_a_stop_string_is_held() -> None:
    stops = StopStrings(["ZZZZ", "\nUser"])
    for text, held in [("hello", 0), ("helloZ", 1), ("ZZZ", 3), ("ZZZx", 0), ("a\n", 1), ("a\nUse", 4), ("\nUZ", 1)]:
        state, match = stops.scan(StopStrings.START, text)
        assert match is None
        assert stops.num_held(state) == held, text


def test_an_ignored_stop_string_is_not_held() -> None:
    stops = StopStrings(["ab", "bcd"])
    state, match = stops.scan(StopStrings.START, "ab", may_stop=False)
    assert match is None
    assert stops.num_held(state) == 1  # "b" may still become "bcd"
    assert stops.num_held(stops.scan(StopStrings.START, "bcd", may_stop=False)[0]) == 0


def test_random_texts_against_the_slow_rule_whatever_the_pieces() -> None:
    rng = random.Random(1)
    num_matches = 0
    for _ in range(500):
        stops = ["".join(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))]
        text = "".join(rng.choices("abcd", k=rng.randint(1, 25)))
        automaton = StopStrings(stops)
        state, position, found = StopStrings.START, 0, None
        while position < len(text) and found is None:
            piece = text[position : position + rng.randint(1, 6)]
            state, match = automaton.scan(state, piece)
            if match is not None:
                found = match.stop, position + match.end
            position += len(piece)
            if found is None:
                assert automaton.num_held(state) == slow_held(stops, text[:position]), (stops, text[:position])
        assert found == slow_match(stops, text), (stops, text)
        num_matches += found is not None
    assert 100 < num_matches < 500


def test_the_length_of_a_stop_string_is_bounded_at_the_door() -> None:
    """The automaton has a state a character."""
    SamplingParams(stop="x" * MAX_STOP_LENGTH)
    with pytest.raises(InvalidParameterError, match="at most 1024 characters"):
        SamplingParams(stop="x" * (MAX_STOP_LENGTH + 1))
