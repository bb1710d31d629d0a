"""Log probabilities of the model's own distribution, on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.messages import RawLogprobs
from engine.sampling.device_copies import download, upload

_SLICE = 2**23
"""Log probabilities whose sort keys are made at a time, 64 MiB of them."""
_WORD = 0xFFFFFFFF


class PendingLogprobs:
    """Log probabilities on their way to the host; to be read after the device's work so far is done."""

    def __init__(
        self,
        places: Sequence[int],
        num_top: Sequence[int],
        sampled: torch.Tensor,
        top_ids: torch.Tensor,
        top_values: torch.Tensor,
    ) -> None:
        """sampled: float32 (rows). top_ids, top_values: int64 and float32 (rows, the most asked for)."""
        self._places = places
        self._num_top = num_top
        self._sampled = download(sampled)
        self._top_ids = download(top_ids)
        self._top_values = download(top_values)

    def put(self, token_ids: Sequence[int], logprobs: list[RawLogprobs | None]) -> None:
        """Enters the log probabilities at their rows' places. token_ids: of all rows of the step."""
        rows = zip(
            self._places,
            self._num_top,
            self._sampled.tolist(),
            self._top_ids.tolist(),
            self._top_values.tolist(),
            strict=True,
        )
        for place, count, logprob, ids, values in rows:
            logprobs[place] = RawLogprobs(token_ids[place], logprob, tuple(ids[:count]), tuple(values[:count]))


class TopLogprobs:
    """The most likely tokens of the rows that ask, taken from the logits before anything changes them.

    They are ordered by (−logprob, id), ties at the end of the list included, as `compute_logprobs` orders them.
    """

    def __init__(self, logits: torch.Tensor, places: Sequence[int], num_top: Sequence[int]) -> None:
        """logits: float32 (R, vocab). places: of the rows that ask. num_top: alternatives for each of these rows."""
        self._places = places
        self._num_top = num_top
        self._index = None
        if len(places) < len(logits):
            self._index = upload(np.array(places, dtype=np.int64), logits.device)
            logits = logits.index_select(0, self._index)
        self._logprobs = logits.log_softmax(-1)
        # NOTE: a copy of some rows is gone before the keys are made: the work space of a step is measured where all of
        # them ask, and none is copied.
        del logits
        vocab_size = self._logprobs.shape[1]
        count = min(max(num_top), vocab_size)
        rows = max(1, _SLICE // vocab_size)
        self._top_ids = torch.cat([_top_ids(part, count) for part in torch.split(self._logprobs, rows)])

    def of(self, token_ids: torch.Tensor) -> PendingLogprobs:
        """Starts the copies of everything asked for. token_ids: int64 (R), sampled, on the device."""
        if self._index is not None:
            token_ids = token_ids.index_select(0, self._index)
        sampled = self._logprobs.gather(1, token_ids.unsqueeze(1)).squeeze(1)
        return PendingLogprobs(
            self._places, self._num_top, sampled, self._top_ids, self._logprobs.gather(1, self._top_ids)
        )


def _top_ids(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """int64 (rows, count): ids in order of (−logprob, id). logprobs: float32 (rows, vocab).

    NOTE: topk leaves open which of several equal values it takes. Here no two are equal: a key's high word orders as
    the log probability does (the bits of a float, those of a negative one turned round), its low word is the id's
    complement.
    """
    bits = (logprobs + 0.0).view(torch.int32)  # turns −0 into 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logprobs.shape[1], device=logprobs.device)
    keys = (ordered.long() << 32) | (_WORD - ids)
    return _WORD - (keys.topk(count, dim=-1).values & _WORD)
