"""A tokenizer from a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.brief import brief
from engine.errors import ModelLoadError
from engine.tokenizer.chat_template import ChatTemplate
from engine.tokenizer.tokenizer import Tokenizer


def load_folder(folder: Path) -> Tokenizer:
    """From tokenizer.json, with special tokens and chat template from the files beside it. Raises `ModelLoadError`."""
    # NOTE: PreTrainedTokenizerFast takes tokenizer.json as it is; AutoTokenizer would import torch and may rebuild the
    # tokenizer after a class's own rules.
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    # NOTE: the library reports a damaged file as a bare Exception, among others; each means the same to the user.
    except Exception as error:
        raise ModelLoadError(f"the tokenizer in {folder} cannot be read: {error}") from error
    if not tokenizer.chat_template:
        tokenizer.chat_template = _legacy_template(folder / "chat_template.json")
    return Tokenizer(
        tokenizer.backend_tokenizer,
        ChatTemplate(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def _legacy_template(path: Path) -> str | dict[str, str] | None:
    """The template of a chat_template.json, as older folders keep it."""
    if not path.is_file():
        return None
    try:
        template = json.loads(path.read_text(encoding="utf-8"))["chat_template"]
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{path} must be a JSON object with a chat_template: {error!r}") from error
    if not isinstance(template, str | dict):
        raise ModelLoadError(f"{path}: chat_template must be a text or a list of named texts, got {brief(template)}")
    return template
