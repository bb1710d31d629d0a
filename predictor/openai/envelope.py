"""What every answer and every chunk of one response carries: its id, time, model and fingerprint."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from predictor.openai.errors import ModelNotFoundError
from predictor.request_context import REQUEST_ID, current_request, note_model, request_id_of

if TYPE_CHECKING:
    from engine.messages import ModelInfo
    from predictor.service import GenerationService


@dataclass(frozen=True, slots=True)
class Envelope:
    """request_id: what the caller sent as x-request-id, or a new one. created: Unix time in seconds."""

    request_id: str
    prefix: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def open(
        cls, service: GenerationService, headers: Mapping[str, str], *, prefix: str, model: str | None
    ) -> Envelope:
        """An envelope for a request that names `model` (None means the served one).

        Raises `ModelNotFoundError`, or `UnavailableError` before the model is loaded.
        """
        current = current_request()
        request_id = request_id_of(headers.get(REQUEST_ID)) if current is None else current.request_id
        note_model(service.model_name if model is None else model, f"{prefix}-{request_id}")
        if model is not None and not service.serves(model):
            raise ModelNotFoundError(model, service.model_name)
        return cls(
            request_id=request_id,
            prefix=prefix,
            created=int(time.time()),
            model=service.model_name if model is None else model,
            fingerprint=system_fingerprint(service.model_name, service.info),
        )

    @property
    def id(self) -> str:
        return f"{self.prefix}-{self.request_id}"

    def engine_ids(self, count: int) -> list[str]:
        """Ids for the `count` engine requests of this response; the service makes them unique."""
        return [self.id] if count == 1 else [f"{self.id}-{k}" for k in range(count)]

    def as_dict(self, kind: str) -> dict[str, Any]:
        """The common fields of a response object of type `kind`."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    @property
    def headers(self) -> dict[str, str]:
        return {REQUEST_ID: self.request_id}


@lru_cache(maxsize=8)
def system_fingerprint(model_name: str, info: ModelInfo) -> str:
    """Names what computes the tokens: equal between replicas and restarts that run the same model the same way."""
    facts = (model_name, info.architecture, info.num_parameters, info.vocab_size, info.dtype, info.device)
    return "fp_" + hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
