"""The served model as OpenAI's model objects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from engine.errors import UnavailableError
from predictor.openai.errors import ModelNotFoundError

if TYPE_CHECKING:
    from predictor.service import GenerationService

CREATED = int(time.time())
OWNER = "pagedserve"


def model_card(service: GenerationService, name: str) -> dict[str, Any]:
    """The model object of `name`: the model's own name or one of its aliases. Raises `ModelNotFoundError`.

    Beside OpenAI's fields, as vLLM has them: `root`, the model's own name, and `max_model_len`, in tokens, null
    while the model is loading.
    """
    if not service.serves(name):
        raise ModelNotFoundError(name, service.model_name)
    try:
        max_model_len = service.info.max_model_len
    except UnavailableError:
        max_model_len = None
    return {
        "id": name,
        "object": "model",
        "created": CREATED,
        "owned_by": OWNER,
        "root": service.model_name,
        "parent": None,
        "max_model_len": max_model_len,
    }


def model_list(service: GenerationService) -> dict[str, Any]:
    """The list of the model under each of its names."""
    names = (service.model_name, *service.aliases)
    return {"object": "list", "data": [model_card(service, name) for name in names]}
