"""Small tokenizers made in process: byte-level, byte-fallback and Metaspace."""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from engine.tokenizer import Tokenizer
from engine.tokenizer.chat_template import ChatTemplate
from engine.tokenizer.token_bytes import byte_level_alphabet

EOS, IM_START = "<|end|>", "<|start|>"
WORDS = ("the", "he", "in", "an", "er", "ll", "lo", "ing", "Ġt", "Ġthe", "Ġa", "ĠĠ", "Hello", "Hel", "He", "ä¸Ń", "ä¸")


class NoTemplate(ChatTemplate):
    """A tokenizer without a chat template."""

    def __init__(self) -> None:
        super().__init__(None)

    @property
    def exists(self) -> bool:
        return False


def byte_level_backend() -> Backend:
    """256 byte tokens (ids 0..255 are bytes 0..255), some words, an added token with an accent, two special tokens."""
    spelling = {byte: char for char, byte in byte_level_alphabet().items()}
    vocab = {spelling[byte]: byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in sorted(WORDS, key=len):
        vocab.setdefault(word, len(vocab))
        cuts = [(word[:cut], word[cut:]) for cut in range(1, len(word))]
        merges += [(left, right) for left, right in cuts if left in vocab and right in vocab]
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(EOS, normalized=False), AddedToken(IM_START, normalized=False)])
    backend.add_tokens([AddedToken("¡olé!", normalized=False)])
    return backend


def byte_fallback_backend(strip: bool = True) -> Backend:
    """Llama 2's shape: <unk>, <s>, </s>, 256 byte tokens (ids 3..258), letters and words with ▁."""
    tokens = ["<unk>", "<s>", "</s>"]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += ["▁", *string.ascii_letters, *string.punctuation, "é", "中", "▁t", "he", "▁the", "▁a", "▁▁", "ZZ", "▁Hi"]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("▁", "▁"), ("Z", "Z")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    replace = normalizers.Replace(" ", "▁")
    if strip:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = replace
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return backend


def metaspace_backend() -> Backend:
    vocab = {token: i for i, token in enumerate(["<unk>", "▁", "a", "b", "▁a", "▁ab", "▁▁b", "</s>"])}
    backend = Backend(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁a", "b")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("</s>", normalized=False)])
    return backend


def tokenizer_of(backend: Backend) -> Tokenizer:
    return Tokenizer(backend, NoTemplate())


@cache
def byte_level() -> Tokenizer:
    return tokenizer_of(byte_level_backend())


@cache
def byte_fallback() -> Tokenizer:
    return tokenizer_of(byte_fallback_backend())


@cache
def metaspace() -> Tokenizer:
    return tokenizer_of(metaspace_backend())


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """The byte tokens of `data` in `byte_level()` or `byte_fallback()`."""
    offset = 0 if tokenizer is byte_level() else 3
    return [byte + offset for byte in data]


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a vocabulary entry by its own spelling."""
    found = tokenizer._backend.token_to_id(token)
    assert found is not None, token
    return int(found)


def save_folder(folder: Path, backend: Backend, **config: Any) -> Path:
    """A Hugging Face folder with tokenizer.json and tokenizer_config.json."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    return folder
