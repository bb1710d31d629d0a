"""The sampling state of one sequence."""

from __future__ import annotations

from engine.core.request import Request
from engine.sampling.token_counts import TokenCounts


class SamplingRow:
    """What the sampler keeps of a sequence from step to step.

    A row holds nothing that the request does not determine: it can be dropped at preemption and made anew at
    re-admission, and then draws as if nothing had happened.

    counts: tokens seen so far, None when the request asks for no penalty.
    """

    __slots__ = ("counts", "params", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.params = request.params
        self.counts = TokenCounts.of(request)

    @property
    def position(self) -> int:
        """Position of the token that the next draw is for."""
        return self.request.num_tokens

    @property
    def is_below_min_tokens(self) -> bool:
        """Whether the next token may not be one that ends the sequence."""
        return self.request.num_output_tokens < self.params.min_tokens
