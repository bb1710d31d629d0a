"""Log probabilities of the model's own distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.messages import RawLogprobs
from engine.sampling.largest import largest_values


def compute_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[RawLogprobs]:
    """Log probability of each row's sampled token and of its most likely ones.

    logits: float32 (rows, vocab) as the model gave them, before bias, masks, penalties and temperature.
    num_top: alternatives a row, cut at the vocabulary. They are ordered by (−logprob, id), ties at the end of the
    list included: among equals the lower ids are listed.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    sampled = logprobs.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1)).squeeze(1).tolist()
    vocab_size = logits.shape[1]
    most = min(max(num_top), vocab_size)
    borders = largest_values(logprobs, most) if most else None
    results: list[RawLogprobs] = []
    for row, (token_id, logprob, count) in enumerate(zip(token_ids, sampled, num_top, strict=True)):
        k = min(count, vocab_size)
        if k == 0 or borders is None:
            results.append(RawLogprobs(token_id, logprob))
            continue
        values = logprobs[row].cpu().numpy()
        ids = np.flatnonzero(values >= borders[row, k - 1])
        ids = ids[np.argsort(-values[ids], kind="stable")[:k]]
        results.append(RawLogprobs(token_id, logprob, tuple(ids.tolist()), tuple(values[ids].tolist())))
    return results
