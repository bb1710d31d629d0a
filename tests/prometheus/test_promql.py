"""The helpers that shorten durations and name metrics."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.prometheus.promql import durations, matched_values, metric_names, shorten, shorten_duration


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rate(a[5m])", "rate(a[20s])"),
        ("rate(a[1m] offset 1h30m)", "rate(a[4s] offset 360s)"),
        ("max_over_time((a > 5)[1h:1m])", "max_over_time((a > 5)[240s:4s])"),
        ("a offset 20m", "a offset 80s"),
        ("rate(a[10s])", "rate(a[666ms])"),
        ('a{b="[5m] offset 1h"}', 'a{b="[5m] offset 1h"}'),
        ("inferenceservice:a:rate5m > 5", "inferenceservice:a:rate5m > 5"),
    ],
)
def test_shorten(before: str, after: str) -> None:
    if after.endswith("ms])"):
        with pytest.raises(AssertionError, match="does not divide"):
            shorten(before, 15)
    else:
        assert shorten(before, 15) == after


def test_shorten_duration() -> None:
    assert shorten_duration("1d", 15) == "5760s"
    assert shorten_duration("30ms", 15) == "2ms"


def test_what_an_expression_names() -> None:
    text = 'sum(rate(a_bucket{le="0.5"}[5m])) / b offset 1m or vector(0)'
    assert metric_names(text) == {"a_bucket", "b"}
    assert matched_values(text, "le") == {("a_bucket", "0.5")}
    assert durations(text) == [timedelta(minutes=5), timedelta(minutes=1)]
