"""A histogram of one series, as cheap as the loop that hands out tokens needs it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Histogram(Collector):
    """Counts of values up to each bound, with one set of labels; at 0 from construction on.

    bounds: ascending, without infinity, which is added. Fed and collected on one thread.
    prometheus_client's own histogram takes a lock and walks its buckets for each value; this one searches them, and
    takes many equal values at once.
    """

    def __init__(
        self, name: str, text: str, labels: Mapping[str, str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        assert all(low < high for low, high in pairwise(bounds)), "bounds must ascend"
        self._name = name
        self._text = text
        self._labels = dict(labels)
        self._bounds = tuple(bounds)
        self._bucket_labels = [{**labels, "le": _text(bound)} for bound in (*bounds, inf)]
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, count: int = 1) -> None:
        """`count` values, all equal to `value`."""
        # NOTE: a bucket takes the values up to and with its bound, so the first bound that is not less is the one.
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def describe(self) -> Iterator[Metric]:
        yield Metric(self._name, self._text, "histogram")

    def collect(self) -> Iterator[Metric]:
        metric = Metric(self._name, self._text, "histogram")
        total = 0
        for labels, total in zip(self._bucket_labels, accumulate(self._counts), strict=True):
            metric.add_sample(f"{self._name}_bucket", labels, total)
        metric.add_sample(f"{self._name}_count", self._labels, total)
        metric.add_sample(f"{self._name}_sum", self._labels, self._sum)
        yield metric


def _text(bound: float) -> str:
    """A bound as Prometheus' canonical form writes it: with a fraction, as 1.0, or +Inf."""
    return "+Inf" if bound == inf else str(float(bound))
