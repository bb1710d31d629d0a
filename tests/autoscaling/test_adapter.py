from __future__ import annotations

import pytest

from autoscaling.adapter import adapter_query, metric_name

RULE = {
    "seriesQuery": 'a_total{namespace!=""}',
    "name": {"as": "a"},
    "metricsQuery": "sum by (<<.GroupBy>>) (rate(<< .Series >>{<<.LabelMatchers>>}[1m]))",
}


def test_templates_are_filled() -> None:
    query = adapter_query(RULE, {"namespace": "default", "inferenceservice": "llm"})
    assert query == 'sum by (pod) (rate(a_total{namespace="default",inferenceservice="llm"}[1m]))'
    assert metric_name(RULE) == "a"


@pytest.mark.parametrize("template", ["<<.LabelValuesByName.x>>", "<<.Unknown>>"])
def test_unknown_templates_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="not known"):
        adapter_query({**RULE, "metricsQuery": f"sum(a{{{template}}})"}, {})
