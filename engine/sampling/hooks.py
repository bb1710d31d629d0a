"""The seam through which features change logits before sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.row import SamplingRow


class Target(NamedTuple):
    """A row of the logits that a hook is to change. place: its index in the tensor."""

    place: int
    row: SamplingRow


class LogitsHook(Protocol):
    """One feature that changes logits: a bias, a mask, a penalty, a grammar.

    NOTE: a hook may read and write only the rows of its targets, each by that row's own state, so that no sequence's
    tokens depend on its neighbours.
    """

    def wants(self, row: SamplingRow) -> bool:
        """Whether the row's next token is affected. Called for each row and step: must be cheap."""
        ...

    def apply(self, logits: torch.Tensor, targets: Sequence[Target]) -> None:
        """Changes the targets' rows in place. logits: float32 (rows, vocab), contiguous."""
        ...


def flat_indices(
    targets: Sequence[Target], token_ids: Sequence[npt.NDArray[np.int64]], vocab_size: int
) -> npt.NDArray[np.int64]:
    """Places of each target's token ids (ids beyond the vocabulary not allowed) in the flattened logits."""
    starts = np.array([target.place * vocab_size for target in targets], dtype=np.int64)
    return np.concatenate(token_ids) + np.repeat(starts, [len(ids) for ids in token_ids])
