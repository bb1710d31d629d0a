"""The tokenizer of the served model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.errors import InvalidPromptError, ModelLoadError
from engine.models.model_files import find_gguf, is_gguf
from engine.tokenizer.chat_template import ChatTemplate
from engine.tokenizer.token_bytes import TokenBytes


class Tokenizer:
    """Wraps a `tokenizers.Tokenizer` and the chat template. Imports no torch.

    Decoding is defined on bytes (see `TokenBytes`), so that a text is the same streamed or not.
    """

    def __init__(
        self,
        backend: Any,
        template: ChatTemplate,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
    ) -> None:
        """backend: a `tokenizers.Tokenizer`, owned from here on. Raises `ModelLoadError` for an unknown decoder."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._template = template
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        added = backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        self.special_token_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        """Ids that `skip_special_tokens` leaves out of the text."""
        state = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        self._rules = TokenBytes.compile(state)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """From a Hugging Face folder (tokenizer.json), a `.gguf` file, or a folder with one `.gguf`.

        Raises `ModelLoadError` when there is none of these, or it cannot be read.
        """
        model_dir = Path(model_dir)
        if not model_dir.exists():
            raise ModelLoadError(f"{model_dir} does not exist")
        if model_dir.is_file():
            if not is_gguf(model_dir):
                raise ModelLoadError(f"{model_dir} is neither a folder nor a .gguf file")
            return cls._load_gguf(model_dir)
        if (model_dir / "tokenizer.json").is_file():
            from engine.tokenizer.hf_folder import load_folder

            return load_folder(model_dir)
        if (file := find_gguf(model_dir)) is not None:
            return cls._load_gguf(file)
        if (model_dir / "tokenizer.model").is_file():
            raise ModelLoadError(
                f"{model_dir} has a SentencePiece tokenizer.model but no tokenizer.json; convert it once with "
                "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        raise ModelLoadError(f"{model_dir} has neither a tokenizer.json nor a .gguf file")

    @staticmethod
    def _load_gguf(path: Path) -> Tokenizer:
        from engine.tokenizer.gguf import load_gguf

        return load_gguf(path)

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included. The model's embedding may have more rows."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens written in it are parsed; `add_special_tokens` adds BOS or EOS where the
        model's tokenizer does so. Raises `InvalidPromptError` for a lone surrogate, which is no Unicode text."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidPromptError(
                f"the prompt is not valid Unicode: lone surrogate at character {error.start}", param="prompt"
            ) from error
        # NOTE: only the library's batched calls let other threads run meanwhile; this one leaves out offsets.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; malformed UTF-8 becomes U+FFFD, ids outside the vocabulary add nothing."""
        pieces: list[bytes] = []
        for token_id in ids:
            if skip_special_tokens and token_id in self.special_token_ids:
                continue
            if data := self.token_bytes(token_id):
                pieces.append(data if pieces else self.first_token_bytes(token_id))
        return self.strip_start(b"".join(pieces))[0].decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes that the token adds inside a text; a special token's own text; b"" outside the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self._token(token_id)
            known = b"" if token is None else self._rules.of(token, is_added=token_id in self._added_ids)
            self._bytes[token_id] = known
        return known

    def first_token_bytes(self, token_id: int) -> bytes:
        """As `token_bytes`, for the token that starts a text (before `strip_start`)."""
        token = self._token(token_id)
        return b"" if token is None else self._rules.of_first(token, is_added=token_id in self._added_ids)

    def strip_start(self, data: bytes, limit: int | None = None) -> tuple[bytes, int]:
        """Takes off the leading spaces that the tokenizer put before a text, at most `limit` (None: its own number).

        Returns the rest, and how many may still be taken off bytes that follow.
        """
        limit = self._rules.strip_left if limit is None else limit
        start = 0
        while start < min(limit, len(data)) and data[start : start + 1] == self._rules.strip_byte:
            start += 1
        return data[start:], (limit - start if start == len(data) else 0)

    def token_text(self, token_id: int) -> str:
        """The token for display: its text, or `bytes:\\xe4\\xb8` where its bytes are not UTF-8 by themselves."""
        data = self.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    @property
    def has_chat_template(self) -> bool:
        return self._template.exists

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Text of a chat prompt; tokenise it with `encode(text, add_special_tokens=False)`.

        kwargs: variables of the template. Raises `InvalidPromptError` when the model has no template or when it
        refuses the messages.
        """
        return self._template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=kwargs
        )

    def _token(self, token_id: int) -> str | None:
        if not 0 <= token_id < 1 << 32:
            return None
        token: str | None = self._backend.id_to_token(token_id)
        return token
