"""The forms of PromQL that panels share."""

from __future__ import annotations

import pytest

from grafana.queries import SERVICE, in_range, mean, of_hpa, of_service, quantile, rate, total, wanted_replicas
from tests.grafana.linter import bare
from tests.prometheus.promql import metric_names


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (rate("a_total", "pod", "x"), "sum by (pod) (rate(a_total{x}[$__rate_interval]))"),
        (rate("a_total", "", "x"), "sum (rate(a_total{x}[$__rate_interval]))"),
        (rate('a_total{b="c"}', "", "x"), 'sum (rate(a_total{b="c",x}[$__rate_interval]))'),
        (total("a", "pod", "x"), "sum by (pod) (a{x})"),
        (
            quantile(0.95, "a", labels="x"),
            "histogram_quantile(0.95, sum by (le) (rate(a_bucket{x}[$__rate_interval])))",
        ),
        (
            quantile(0.5, "a", "pod", "x"),
            "histogram_quantile(0.5, sum by (le, pod) (rate(a_bucket{x}[$__rate_interval])))",
        ),
        (in_range("a", "x").expr, "sum by (le) (increase(a_bucket{x}[$__range]))"),
        (
            of_service("a", "deployment", "-predictor"),
            'label_replace(a, "inferenceservice", "$1", "deployment", "(.+?)(-predictor)?")',
        ),
    ],
)
def test_form(made: str, expected: str) -> None:
    assert made == expected


def test_a_mean_is_a_sum_over_a_count() -> None:
    assert metric_names(bare(mean("a", labels=SERVICE))) == {"a_sum", "a_count"}


def test_an_hpa_is_known_by_its_target() -> None:
    assert metric_names(bare(of_hpa("kube_horizontalpodautoscaler_spec_max_replicas"))) == {
        "kube_horizontalpodautoscaler_spec_max_replicas",
        "kube_horizontalpodautoscaler_info",
    }


def test_wanted_replicas_know_a_canary_by_its_pods() -> None:
    assert metric_names(bare(wanted_replicas())) == {"kube_deployment_spec_replicas", "pagedserve_engine_up"}
