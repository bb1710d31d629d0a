"""The lean histogram against prometheus_client's."""

from __future__ import annotations

import random

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from engine.metrics_histogram import Histogram

BOUNDS = (0.001, 0.01, 0.25, 1.0, 2.5, 1000.0)
LABELS = {"model_name": "m"}


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_equals_the_librarys_histogram() -> None:
    rng = random.Random(0)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    lean = Histogram("x_seconds", "x", LABELS, BOUNDS, ours)
    full = prometheus_client.Histogram("x_seconds", "x", ("model_name",), registry=theirs, buckets=BOUNDS)
    assert samples(ours).keys() == samples_of_new(full, theirs)
    for _ in range(500):
        value = rng.choice([*BOUNDS, 0.0, -1.0, 1e9, rng.uniform(0, 3), rng.lognormvariate(-4, 3)])
        count = rng.choice([1, 1, 1, 2, 5])
        lean.observe(value, count)
        for _ in range(count):
            full.labels("m").observe(value)
    expected = samples(theirs)
    assert samples(ours).keys() == expected.keys()
    for series, value in samples(ours).items():
        assert value == pytest.approx(expected[series]), series


def samples_of_new(full: prometheus_client.Histogram, registry: CollectorRegistry) -> object:
    full.labels("m")
    return samples(registry).keys()


def test_a_value_at_a_bound_is_within_it() -> None:
    registry = CollectorRegistry()
    Histogram("x", "x", LABELS, (1.0, 2.0), registry).observe(1.0)
    assert registry.get_sample_value("x_bucket", {**LABELS, "le": "1.0"}) == 1


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    Histogram("x", "x", LABELS, (1.0,), registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Histogram("x", "x", LABELS, (1.0,), registry)
