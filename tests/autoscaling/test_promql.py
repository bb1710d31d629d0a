from __future__ import annotations

import pytest

from autoscaling.promql import Selector, Series, one_sample_problem, selectors, series


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("sum(a)", Series.ONE),
        ("sum(avg_over_time(a[1m]) + avg_over_time(b[1m]))", Series.ONE),
        ("100 * sum(a)", Series.ONE),
        ("sum(a) + sum(b)", Series.ONE),
        ("sum by () (a)", Series.ONE),
        ("-(sum(a))", Series.ONE),
        ("sum(a) or vector(0)", Series.ONE),
        ("sum(a) or sum(b) == 0", Series.ONE),
        ("sum(a) unless sum(b) > 0", Series.ONE),
        ("max(sum by (pod) (a))", Series.ONE),
        ("clamp_max(sum(a), 5)", Series.ONE),
        ("max_over_time(sum(a)[5m:1m])", Series.ONE),
        ("histogram_quantile(0.9, sum by (le) (rate(a_bucket[5m])))", Series.ONE),
        ("absent(a)", Series.ONE_LABELLED),
        ("topk(1, a)", Series.ONE_LABELLED),
        ("sum(a) + absent(b)", Series.ONE_LABELLED),
        ('label_replace(sum(a), "x", "y", "", "")', Series.ONE_LABELLED),
        ("sum by (pod) (absent(a))", Series.ONE_LABELLED),
        ("a", Series.MANY),
        ("avg_over_time(a[1m])", Series.MANY),
        ("sum by (pod) (a)", Series.MANY),  # one a pod
        ("sum without (pod) (a)", Series.MANY),
        ("topk(2, a)", Series.MANY),
        ("topk(1, a) by (pod)", Series.MANY),
        ("count_values('x', a)", Series.MANY),
        ("a + b", Series.MANY),
        ("a * on() sum(b)", Series.MANY),
        ("a or vector(0)", Series.MANY),
        ("sum(a) or absent(a)", Series.MANY),  # different labels stand side by side
        ("histogram_quantile(0.9, sum by (le, pod) (rate(a_bucket[5m])))", Series.MANY),
        ("histogram_quantile(0.9, rate(a_bucket[5m]))", Series.MANY),
        ("1 + 2", Series.SCALAR),
        ("scalar(sum(a))", Series.SCALAR),
        ("time()", Series.SCALAR),
    ],
)
def test_series(expression: str, found: Series) -> None:
    assert series(expression) is found


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("sum(pagedserve_requests_running)", None),
        ("pagedserve_requests_running", "several series"),
        ("sum by (pod) (pagedserve_requests_running)", "several series"),
        ("scalar(sum(a))", "vector"),
        ("sum(a", "no PromQL"),
        ("", "no PromQL"),
    ],
)
def test_K4_a_query_of_one_sample(expression: str, named: str | None) -> None:
    problem = one_sample_problem(expression)
    assert problem is None if named is None else named in (problem or "")


def test_selectors_are_found_wherever_they_stand() -> None:
    expression = "sum(avg_over_time(a{x='1'}[1m]) + -b) or (max_over_time(sum(c{y=~'2'})[5m:]) unless {z='3'}) == 0"
    assert selectors(expression) == [
        Selector("a", {"x": "1"}),
        Selector("b", {}),
        Selector("c", {"y": "2"}),
        Selector(None, {"z": "3"}),
    ]
