"""The page's text against prometheus_client's encoders and parsers."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, exposition, parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.openmetrics import parser as openmetrics_parser

from engine.metrics import EngineMetrics
from engine.metrics_aliases import vllm_aliases
from predictor.metrics_text import render


class Given(CollectorRegistry):
    def __init__(self, metrics: list[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


@pytest.fixture
def own() -> list[Metric]:
    registry = CollectorRegistry()
    metrics = EngineMetrics('odd "name"\\with\nall', registry, rejection_reasons=("a", "b"))
    metrics.on_inter_token(1 / 3, 7)
    metrics.on_first_token(1e9, 10**17)
    Gauge("text", 'with "quotes",\na new line and a \\', registry=registry).set(-1.5)
    Gauge("not_a_number", "", registry=registry).set(math.nan)
    Gauge("least", "", registry=registry).set(-math.inf)
    Gauge("most", "", registry=registry).set(math.inf)
    Counter("tiny", "", registry=registry).inc(1e-12)
    own = list(registry.collect())
    for metric in own:
        metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    return own


def parsed(families: Iterable[Metric]) -> list[object]:
    return [
        (family.name, family.type, family.documentation, [(s.name, s.labels, repr(s.value)) for s in family.samples])
        for family in families
    ]


def test_prometheus_text_reads_as_the_librarys(own: list[Metric]) -> None:
    expected = exposition.generate_latest(Given(own)).decode()
    text = render(own, openmetrics=False)
    assert parsed(parser.text_string_to_metric_families(text)) == parsed(
        parser.text_string_to_metric_families(expected)
    )
    assert [line.split("{")[0] for line in text.splitlines()] == [line.split("{")[0] for line in expected.splitlines()]


def test_openmetrics_reads_as_the_librarys(own: list[Metric]) -> None:
    expected = openmetrics_exposition.generate_latest(Given(own)).decode()
    text = render(own, openmetrics=True) + "# EOF\n"
    assert parsed(openmetrics_parser.text_string_to_metric_families(text)) == parsed(
        openmetrics_parser.text_string_to_metric_families(expected)
    )


def test_colons_in_names_stay(own: list[Metric]) -> None:
    """In prometheus_client's own OpenMetrics they are underscores."""
    aliases = list(vllm_aliases(own))
    names = {sample.name for metric in aliases for sample in metric.samples}
    assert "vllm:iteration_tokens_total_bucket" in names
    text = render(aliases, openmetrics=True) + "# EOF\n"
    families = list(openmetrics_parser.text_string_to_metric_families(text))
    assert {sample.name for family in families for sample in family.samples} == names
    assert [family.name for family in families] == [metric.name for metric in aliases]
