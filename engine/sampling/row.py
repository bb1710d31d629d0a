"""The sampling state of one sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.core.request import Request
from engine.sampling.token_counts import TokenCounts


class SamplingRow:
    """What the sampler keeps of a sequence from step to step.

    A row holds nothing that the request does not determine: it can be dropped at preemption and made anew at
    re-admission, and then draws as if nothing had happened.

    counts: tokens seen so far, None when the request asks for no penalty.
    bias_ids, bias_values: int64 and float32 (entries), `params.logit_bias` as arrays.
    """

    __slots__ = ("bias_ids", "bias_values", "counts", "params", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.params = request.params
        self.counts = TokenCounts.of(request)
        bias = request.params.logit_bias
        self.bias_ids: npt.NDArray[np.int64] = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self.bias_values: npt.NDArray[np.float32] = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))

    @property
    def position(self) -> int:
        """Position of the token that the next draw is for."""
        return self.request.num_tokens

    @property
    def is_below_min_tokens(self) -> bool:
        """Whether the next token may not be one that ends the sequence."""
        return self.request.num_output_tokens < self.params.min_tokens
