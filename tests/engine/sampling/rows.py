"""Rows for the tests of the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.core.request import Request
from engine.messages import AddSequence, SequenceId
from engine.sampling.row import SamplingRow
from engine.sampling_params import SamplingParams


def make_request(
    *, prompt: Sequence[int] = (1, 2, 3), output: Sequence[int] = (), seed: int = 0, index: int = 0, **params: Any
) -> Request:
    """A request with this prompt that has generated `output`."""
    message = AddSequence(SequenceId(f"r/{index}"), tuple(prompt), SamplingParams(**params), seed, index, 0.0)
    request = Request(message, 0)
    request.token_ids.extend(output)
    return request


def make_row(**arguments: Any) -> SamplingRow:
    return SamplingRow(make_request(**arguments))
