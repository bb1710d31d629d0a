"""A tokenizer from a GGUF file's own vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.models.gguf_file import GgufFile
from engine.tokenizer.chat_template import ChatTemplate
from engine.tokenizer.tokenizer import Tokenizer


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """The `tokenizer.ggml.*` keys. tokens[i] is the string of id i; types as many; scores and merges may be empty."""

    model: str
    pre: str | None
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool
    bos_token_id: int | None
    eos_token_id: int | None
    unknown_token_id: int | None
    chat_template: str | None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], path: Path) -> GGUFVocabulary:
        """Raises `ModelLoadError` when the file holds no usable vocabulary."""

        def get(name: str, default: Any = None) -> Any:
            return metadata.get(f"tokenizer.ggml.{name}", default)

        tokens = get("tokens")
        if not tokens or get("model") is None:
            raise ModelLoadError(f"{path} holds no tokenizer; convert the model again with its tokenizer")
        types = get("token_type") or [TokenType.NORMAL] * len(tokens)
        scores = get("scores") or []
        if len(types) != len(tokens) or (scores and len(scores) != len(tokens)):
            raise ModelLoadError(f"{path}: tokens, token types and scores of the tokenizer differ in number")
        ids = {}
        for name in ("bos_token_id", "eos_token_id", "unknown_token_id"):
            token_id = get(name)
            ids[name] = token_id if token_id is not None and 0 <= token_id < len(tokens) else None
        return cls(
            model=get("model"),
            pre=get("pre"),
            tokens=tokens,
            types=types,
            scores=scores,
            merges=get("merges") or [],
            add_bos=get("add_bos_token"),
            add_eos=get("add_eos_token"),
            add_space_prefix=bool(get("add_space_prefix", True)),
            chat_template=metadata.get("tokenizer.chat_template"),
            **ids,
        )

    def special(self, token_id: int | None) -> str | None:
        """The string of a special token's id."""
        return None if token_id is None else self.tokens[token_id]


def load_gguf(path: Path) -> Tokenizer:
    """From the vocabulary, merges or scores, and chat template inside `path`. Raises `ModelLoadError`."""
    from engine.tokenizer.gguf_bpe import build_byte_level
    from engine.tokenizer.gguf_spm import build_sentencepiece

    vocabulary = GGUFVocabulary.from_metadata(GgufFile(path).metadata, path)
    if vocabulary.model == "gpt2":
        backend, add_bos = build_byte_level(vocabulary, path)
    elif vocabulary.model == "llama":
        backend, add_bos = build_sentencepiece(vocabulary, path)
    else:
        raise ModelLoadError(f"{path}: tokenizer model {vocabulary.model!r} is not supported; gpt2 and llama are")
    _add_special_tokens(backend, vocabulary)
    _add_bos_and_eos(backend, vocabulary, add_bos)
    return Tokenizer(
        backend,
        ChatTemplate(_template_holder(vocabulary)),
        bos_token_id=vocabulary.bos_token_id,
        eos_token_id=vocabulary.eos_token_id,
    )


def _add_special_tokens(backend: Any, vocabulary: GGUFVocabulary) -> None:
    from tokenizers import AddedToken

    control, user_defined = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in {TokenType.CONTROL, TokenType.UNKNOWN}:
            control.append(AddedToken(token, special=True, normalized=False))
        elif kind == TokenType.USER_DEFINED:
            # NOTE: SentencePiece spells user-defined runs of spaces with its marker, which only normalised text has.
            normalized = vocabulary.model == "llama" and "▁" in token
            user_defined.append(AddedToken(token, special=False, normalized=normalized))
    backend.add_special_tokens(control)
    backend.add_tokens(user_defined)


def _add_bos_and_eos(backend: Any, vocabulary: GGUFVocabulary, add_bos: bool) -> None:
    from tokenizers.processors import TemplateProcessing

    single, special = ["$A"], []
    if add_bos and vocabulary.bos_token_id is not None:
        single.insert(0, vocabulary.tokens[vocabulary.bos_token_id])
        special.append((vocabulary.tokens[vocabulary.bos_token_id], vocabulary.bos_token_id))
    if vocabulary.add_eos and vocabulary.eos_token_id is not None:
        single.append(vocabulary.tokens[vocabulary.eos_token_id])
        special.append((vocabulary.tokens[vocabulary.eos_token_id], vocabulary.eos_token_id))
    if special:
        backend.post_processor = TemplateProcessing(
            single=single, pair=None, special_tokens=list(dict.fromkeys(special))
        )


def _template_holder(vocabulary: GGUFVocabulary) -> Any:
    """A transformers tokenizer with no vocabulary: it only renders the chat template, with the special tokens' text."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()),
        bos_token=vocabulary.special(vocabulary.bos_token_id),
        eos_token=vocabulary.special(vocabulary.eos_token_id),
        unk_token=vocabulary.special(vocabulary.unknown_token_id),
        chat_template=vocabulary.chat_template,
    )
