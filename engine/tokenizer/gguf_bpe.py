"""Byte-level BPE ("gpt2") vocabularies of GGUF files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelLoadError

if TYPE_CHECKING:
    from engine.tokenizer.gguf import GGUFVocabulary

# The splitting rules that the models were trained with, as their own tokenizer.json files state them.
GPT2_SPLIT = None  # the ByteLevel pre-tokenizer's own rule
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
QWEN2_SPLIT = rf"{_WORDS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut before merging.

    split: a pattern whose matches are the pieces; None takes GPT-2's. single_digits: every digit stands alone first.
    ignore_merges: a piece that is a token is taken whole. nfc: text is composed first. add_bos: unless the file tells.
    """

    split: str | None = None
    single_digits: bool = False
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


GPT2 = PreTokenizer(split=GPT2_SPLIT)
DIGITS = PreTokenizer(split=GPT2_SPLIT, single_digits=True)
LLAMA3 = PreTokenizer(split=LLAMA3_SPLIT, ignore_merges=True, add_bos=True)
QWEN2 = PreTokenizer(split=QWEN2_SPLIT, nfc=True)
TEKKEN = PreTokenizer(split=TEKKEN_SPLIT, ignore_merges=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": GPT2,
    "gpt-2": GPT2,
    "gpt2": GPT2,
    "olmo": GPT2,
    "phi-2": GPT2,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "command-r": DIGITS,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "llama-bpe": LLAMA3,
    "falcon3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "tekken": TEKKEN,
}


def build_byte_level(vocabulary: GGUFVocabulary, path: Path) -> tuple[Any, bool]:
    """A `tokenizers.Tokenizer` without its special tokens, and whether BOS is added.

    Raises `ModelLoadError` for a pre-tokenizer not known here, or for broken merges.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = PRE_TOKENIZERS.get(vocabulary.pre or "default")
    if pre is None:
        raise ModelLoadError(
            f"{path}: pre-tokenizer {vocabulary.pre!r} is not supported (known: {', '.join(PRE_TOKENIZERS)}); "
            "put the model's tokenizer.json beside the file and give their folder"
        )
    merges: list[tuple[str, str]] = []
    for merge in vocabulary.merges:
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    try:
        model = models.BPE(vocab=ids, merges=merges, ignore_merges=pre.ignore_merges)
    # NOTE: the library raises a bare Exception for a merge whose parts are no tokens.
    except Exception as error:
        raise ModelLoadError(f"{path}: the tokenizer's merges do not fit its tokens: {error}") from error
    backend = Tokenizer(model)
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[Any] = []
    if pre.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.split is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend, pre.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
