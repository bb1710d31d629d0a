"""Bodies to types: what the errors say. They are made from msgspec's messages: one worded anew shows here."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from engine.errors import RequestError
from predictor.openai.decode import decode_request
from predictor.openai.types import ChatRequest, CompletionRequest


def refuse(body: bytes, kind: type = CompletionRequest) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode_request(body, kind)
    return caught.value


def test_a_missing_field_is_named() -> None:
    error = refuse(b"{}", ChatRequest)
    assert (error.param, error.code, str(error)) == (
        "messages",
        "missing_required_parameter",
        "`messages` is required",
    )


def test_an_unknown_field_is_named_with_its_place() -> None:
    error = refuse(b'{"messages": [{"role": "user", "content": "a", "x y": 1}]}', ChatRequest)
    assert (error.param, error.code) == ("messages[0].x y", "unknown_parameter")
    assert "messages[0].x y" in str(error)


def test_a_wrong_type_is_named_with_what_was_expected() -> None:
    error = refuse(b'{"prompt": "a", "n": "2"}')
    assert (error.param, error.code, str(error)) == (
        "n",
        "invalid_type",
        "`n` is wrong: expected `int | null`, got `str`",
    )


@pytest.mark.parametrize(
    "member",
    [
        b'"%b": 1',
        b'"messages": [{"role": "%b", "content": "a"}]',
        b'"messages": [{"role": "user", "content": "a", "tool_calls": [{"type": "%b"}]}]',
        b'"messages": [{"role": "user", "content": "a", "%b": 1}]',
    ],
)
@pytest.mark.parametrize("text", [b"x", b" - at `$", b"`", b"\\u4f60"])
def test_a_name_or_value_of_any_length_makes_a_short_message(member: bytes, text: bytes) -> None:
    error = refuse(b"{" + member % (text * 100_000) + b"}", ChatRequest)
    assert len(str(error)) < 300
    assert len(error.param or "") < 300


def test_an_unknown_field_of_an_odd_name() -> None:
    assert refuse(b'{"prompt": "a", "we`ird - at `$.n`": 1}').code in ("unknown_parameter", "invalid_type")


@pytest.mark.parametrize(
    ("body", "expected"), [(b'{"prompt": "a"}', UNSET), (b'{"prompt": "a", "max_tokens": null}', None)]
)
def test_null_max_tokens_is_not_a_missing_one(body: bytes, expected: object) -> None:
    assert decode_request(body, CompletionRequest).max_tokens is expected


def test_null_is_accepted_for_every_optional_field() -> None:
    for kind, required in ((CompletionRequest, b'"prompt": "a"'), (ChatRequest, b'"messages": []')):
        optional = [name for name in kind.__struct_fields__ if name not in ("prompt", "messages")]
        nulls = b"".join(b', "%b": null' % name.encode() for name in optional)
        decode_request(b"{" + required + nulls + b"}", kind)
