"""Who is served first."""

from __future__ import annotations

from engine.core.request import Request

OrderKey = tuple[float, int]
"""Sorts requests from the first to be served to the first to be preempted; no two are equal."""


class AgingPolicy:
    """Priority levels, with waiting time credited so that no request starves.

    A request of level L that arrived at time a has at time t the rank L − (t − a) / aging_seconds: lower is served
    first. Two ranks differ by the same amount at every t, so L + a / aging_seconds orders them for good, and a heap
    built on it never has to be sorted again.
    """

    def __init__(self, aging_seconds: float) -> None:
        """aging_seconds: waiting this long is worth one level."""
        self._aging_seconds = aging_seconds

    def key(self, request: Request) -> OrderKey:
        return (request.params.priority_level + request.arrival_time / self._aging_seconds, request.serial)
