"""SentencePiece ("llama") vocabularies of GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelLoadError

if TYPE_CHECKING:
    from engine.tokenizer.gguf import GGUFVocabulary

SPACE = "▁"
NORMAL, UNKNOWN = 1, 2


def build_sentencepiece(vocabulary: GGUFVocabulary, path: Path) -> tuple[Any, bool]:
    """A `tokenizers.Tokenizer` without its special tokens, and whether BOS is added. Raises `ModelLoadError`.

    SentencePiece's BPE joins, of all neighbours that make a token, the pair whose token has the highest score (Kudo
    and Richardson 2018, arXiv:1808.06226). Ranked by that score, the pairs are the merges of an ordinary BPE.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    if not vocabulary.scores:
        raise ModelLoadError(f"{path}: a llama tokenizer needs scores; convert the model again")
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.unknown_token_id
    if unknown is None:
        unknown = next((i for i, kind in enumerate(vocabulary.types) if kind == UNKNOWN), None)
    model = models.BPE(
        vocab=ids,
        merges=merges_from_scores(vocabulary.tokens, vocabulary.types, vocabulary.scores),
        unk_token=vocabulary.special(unknown),
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    replace = normalizers.Replace(" ", SPACE)
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = replace
    backend.decoder = decoders.Sequence(steps)
    return backend, True if vocabulary.add_bos is None else vocabulary.add_bos


def merges_from_scores(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that together make a normal token, highest score first, then lowest id."""
    known = {token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL}
    order = sorted((i for i in range(len(tokens)) if types[i] == NORMAL), key=lambda i: (-scores[i], i))
    merges: list[tuple[str, str]] = []
    for token_id in order:
        token = tokens[token_id]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in known and right in known:
                merges.append((left, right))
    return merges
