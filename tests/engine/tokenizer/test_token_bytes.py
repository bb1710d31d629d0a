"""engine/tokenizer/token_bytes.py"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from engine.errors import ModelLoadError
from engine.tokenizer.token_bytes import TokenBytes, byte_level_alphabet
from tests.engine.tokenizer.vocabularies import (
    byte_fallback,
    byte_fallback_backend,
    byte_level,
    byte_level_backend,
    metaspace,
    metaspace_backend,
    token_id,
    tokenizer_of,
)

SPM: dict[str, Any] = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def test_the_byte_alphabet_spells_every_byte_once() -> None:
    alphabet = byte_level_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["A"], alphabet["ÿ"]) == (0x20, 0x0A, 0x41, 0xFF)


def test_byte_level_tokens_are_spelled_in_the_alphabet_and_added_ones_are_text() -> None:
    rules = TokenBytes.compile({"type": "ByteLevel"})
    assert rules.of("Ġä¸", is_added=False) == b" \xe4\xb8"
    assert rules.of("¡olé!", is_added=True) == "¡olé!".encode()


def test_byte_fallback_tokens_are_bytes() -> None:
    rules = TokenBytes.compile(SPM)
    assert rules.of("<0xE4>", is_added=False) == b"\xe4"
    assert rules.of("<0xE4>x", is_added=False) == b"<0xE4>x"
    assert rules.of("▁▁the", is_added=False) == b"  the"
    assert rules.strip_left == 1


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "CTC"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},  # not after Fuse: would strip every token
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]},
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"},
    ],
)
def test_a_decoder_that_cannot_be_followed_token_by_token_is_refused(decoder: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match="not supported"):
        TokenBytes.compile(decoder)


def test_token_bytes_and_text_of_each_kind_of_token() -> None:
    tokenizer = byte_level()
    assert tokenizer.token_bytes(token_id(tokenizer, "Ġthe")) == b" the"
    assert tokenizer.token_bytes(token_id(tokenizer, "<|end|>")) == b"<|end|>"
    assert tokenizer.token_text(token_id(tokenizer, "Ġthe")) == " the"
    assert tokenizer.token_text(0xE4) == "bytes:\\xe4"
    for unknown in (-1, tokenizer.vocab_size, 2**40):
        assert (tokenizer.token_bytes(unknown), tokenizer.token_text(unknown)) == (b"", "")
    fallback = byte_fallback()
    assert fallback.token_bytes(token_id(fallback, "<0x0A>")) == b"\n"
    assert fallback.token_bytes(token_id(fallback, "▁the")) == b" the"


@pytest.mark.parametrize("make", [byte_level_backend, metaspace_backend, byte_fallback_backend])
@pytest.mark.parametrize("skip", [True, False])
def test_decode_agrees_with_the_tokenizers_library(make: Any, skip: bool) -> None:
    """On random ids; for byte fallback only where the byte runs are good UTF-8 (see the NOTE of TokenBytes)."""
    backend = make()
    tokenizer = tokenizer_of(make())
    rng = random.Random(0)
    is_fallback = make is byte_fallback_backend
    accented = backend.token_to_id("¡olé!")  # the library spells this one in the byte alphabet and loses it
    ids = [i for i in range(tokenizer.vocab_size + 3) if i != accented and not (is_fallback and 131 <= i <= 258)]
    for _ in range(300):
        chosen = rng.choices(ids, k=rng.randint(0, 12))
        assert tokenizer.decode(chosen, skip) == backend.decode(chosen, skip_special_tokens=skip), chosen


def test_decode_of_malformed_byte_runs_keeps_the_good_characters() -> None:
    tokenizer = byte_fallback()
    ids = [token_id(tokenizer, f"<0x{byte:02X}>") for byte in b"\xe4\xb8\xad\xff\xc4"]
    assert tokenizer.decode(ids) == "中\ufffd\ufffd"


def test_a_tokenizer_without_decoder_joins_with_spaces() -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    assert tokenizer_of(backend).decode([0, 9, 1, 2]) == backend.decode([0, 9, 1, 2]) == "a b c"


def test_metaspace_drops_the_marker_of_the_first_token_only() -> None:
    tokenizer = metaspace()
    ids = [token_id(tokenizer, "▁ab"), token_id(tokenizer, "▁▁b")]
    assert tokenizer.decode(ids) == "ab  b"
    backend = metaspace_backend()
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    assert tokenizer_of(backend).decode(ids) == " ab  b"
