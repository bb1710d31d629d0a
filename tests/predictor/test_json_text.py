"""Depth before parsing, and keys given twice."""

from __future__ import annotations

import json
import random

import orjson
import pytest

from predictor.json_text import MAX_JSON_DEPTH, DuplicateKeyError, JsonTooDeepError, check_depth, load_json


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_the_bound_itself_passes_and_one_more_does_not() -> None:
    assert load_json(nested(MAX_JSON_DEPTH), "it")
    with pytest.raises(JsonTooDeepError, match="it is nested more deeply than 128"):
        load_json(nested(MAX_JSON_DEPTH + 1), "it")
    objects = '{"a":' * (MAX_JSON_DEPTH + 1) + "1" + "}" * (MAX_JSON_DEPTH + 1)
    with pytest.raises(JsonTooDeepError):
        check_depth(objects.encode(), "it")


@pytest.mark.parametrize(
    "text",
    ["[" * 10_000, '"' + "[" * 10_000, "{" * 10_000 + '"', nested(1_000_000)],
    ids=["open", "text", "both", "big"],
)
def test_what_is_no_json_raises_nothing_but_the_named_errors(text: str) -> None:
    with pytest.raises((JsonTooDeepError, orjson.JSONDecodeError)):
        load_json(text, "it")


def test_brackets_side_by_side_or_in_strings_are_no_depth() -> None:
    value = {"rows": [[[i]] for i in range(1000)], 'a"[': "[" * 1000, "b\\": '\\"' + "{" * 1000, "\u2028[": ["]" * 500]}
    for text in (json.dumps(value), orjson.dumps(value)):
        assert load_json(text, "it") == value


def test_the_depth_is_exact_whatever_the_strings_hold() -> None:
    rng = random.Random(7)
    for _ in range(300):
        depth = rng.randint(MAX_JSON_DEPTH - 2, MAX_JSON_DEPTH + 2)
        value: object = rng.choice([1, "", "\\", '"', '\\"]', "x[{"])
        for _ in range(depth):
            key = "".join(rng.choices('[]{}"\\a', k=3))
            value = {key: value} if rng.random() < 0.5 else [key, value, [key]] if rng.random() < 0.5 else [value]
        # NOTE: the side list of the innermost level is as deep as that level's own value.
        deepest = depth_of(value)
        if deepest > MAX_JSON_DEPTH:
            with pytest.raises(JsonTooDeepError):
                load_json(json.dumps(value), "it")
        else:
            assert load_json(json.dumps(value), "it") == value


def depth_of(value: object) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if items is None else 1 + max((depth_of(item) for item in items), default=0)


@pytest.mark.parametrize("text", ['{"a":1,"a":1}', '[{"b":{"x":1,"a":2,"\\u0061":3}}]'])
def test_a_key_given_twice_is_named(text: str) -> None:
    with pytest.raises(DuplicateKeyError, match="it holds the key 'a' twice") as caught:
        load_json(text, "it", param="field")
    assert caught.value.param == "field"


def test_the_same_key_in_different_objects_is_fine() -> None:
    assert load_json('[{"a":1},{"a":{"a":2}}]', "it") == [{"a": 1}, {"a": {"a": 2}}]
