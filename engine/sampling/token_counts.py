"""How often each token of a sequence was generated."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from engine.core.request import Request

_FIRST_CAPACITY = 64


class TokenCounts:
    """How often each token was generated, sparse, kept up to date as the request grows.

    token_ids: int64 (distinct tokens), in order of first sight. counts: float32 (the same), occurrences among the
    generated tokens; 0 for a token of the prompt only (held where the repetition penalty needs it).

    NOTE: `token_ids` of a request only grows, so counting what lies past `_num_counted` is enough, and a new object
    over the same request (after preemption) comes to the same state.
    """

    __slots__ = ("_capacity_counts", "_capacity_ids", "_num_counted", "_request", "_slots")

    def __init__(self, request: Request) -> None:
        self._request = request
        covers_prompt = request.params.repetition_penalty != 1.0
        self._num_counted = 0 if covers_prompt else request.num_prompt_tokens
        self._slots: dict[int, int] = {}
        self._capacity_ids = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._capacity_counts = np.zeros(_FIRST_CAPACITY, dtype=np.float32)

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """Counts for the request, or None when its parameters need none."""
        params = request.params
        is_needed = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
        return cls(request) if is_needed else None

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        return self._capacity_ids[: len(self._slots)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        return self._capacity_counts[: len(self._slots)]

    def update(self) -> None:
        """Counts the tokens that the request has gained since the last call."""
        token_ids = self._request.token_ids
        num_prompt_tokens = self._request.num_prompt_tokens
        for place in range(self._num_counted, len(token_ids)):
            slot = self._slot_of(token_ids[place])
            if place >= num_prompt_tokens:
                self._capacity_counts[slot] += 1.0
        self._num_counted = len(token_ids)

    def _slot_of(self, token_id: int) -> int:
        slot = self._slots.get(token_id)
        if slot is None:
            slot = len(self._slots)
            if slot == len(self._capacity_ids):
                self._capacity_ids = np.concatenate((self._capacity_ids, np.zeros_like(self._capacity_ids)))
                self._capacity_counts = np.concatenate((self._capacity_counts, np.zeros_like(self._capacity_counts)))
            self._slots[token_id] = slot
            self._capacity_ids[slot] = token_id
        return slot
