"""Variables in expressions, as Grafana's Prometheus data source puts them there."""

from __future__ import annotations

from typing import Any

import pytest

from grafana.preview.source import Series, Source
from grafana.preview.template import Chosen, Template, resolve, values_of


class Known(Source):
    """A data source that knows two series and nothing else."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", 0.0, 600.0, 15.0)
        self.asked: list[str] = []

    def label_sets(self, selector: str) -> list[dict[str, str]]:
        self.asked.append(selector)
        return [{"pod": "llm-b-x2k4q", "namespace": "default"}, {"pod": "llm.a-9hj7c", "namespace": "default"}, {}]

    def instant(self, expression: str) -> list[Series]:
        self.asked.append(expression)
        return [Series({"modelName": "H100 80GB", "gpu": "0"}, [(0.0, 1.0)])]


def variable(**fields: Any) -> dict[str, Any]:
    return {"name": "pod", "type": "query", "query": "label_values(up, pod)", **fields}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('up{pod=~"$pod"}', 'up{pod=~"(a|b)"}'),
        ('up{pod=~"${pod}-[a-z0-9]{5}"}', 'up{pod=~"(a|b)-[a-z0-9]{5}"}'),
        ("rate(a[$__rate_interval]) + increase(b[$__range])", "rate(a[1m]) + increase(b[15m])"),
        ('label_replace(up, "a", "$1", "b", "(.+)")', 'label_replace(up, "a", "$1", "b", "(.+)")'),
    ],
)
def test_expression(text: str, expected: str) -> None:
    assert Template({"pod": Chosen(["All"], "(a|b)")}).expression(text) == expected


def test_an_unknown_variable_is_an_error() -> None:
    with pytest.raises(KeyError, match="nobody"):
        Template({}).expression('up{pod=~"$nobody"}')


def test_titles_show_the_choice_and_not_the_pattern() -> None:
    assert Template({"gpu": Chosen(["H100", "A100"], "(H100|A100)")}).title("GPU: $gpu") == "GPU: H100 + A100"


def test_values_are_unique_and_in_order() -> None:
    assert values_of(variable(), Known(), Template({})) == ["llm-b-x2k4q", "llm.a-9hj7c"]
    assert values_of(variable(sort=2), Known(), Template({})) == ["llm.a-9hj7c", "llm-b-x2k4q"]
    assert values_of(variable(regex="/^(.+)-[a-z0-9]{5}$/"), Known(), Template({})) == ["llm-b", "llm.a"]
    model = variable(query="query_result(count by (modelName) (x))", regex='/modelName="([^"]+)"/')
    assert values_of(model, Known(), Template({})) == ["H100 80GB"]
    with pytest.raises(ValueError, match="another form"):
        values_of(variable(query="metrics(up)"), Known(), Template({}))


@pytest.mark.parametrize(
    ("fields", "given", "pattern"),
    [
        ({"includeAll": True, "allValue": ".+"}, None, ".+"),
        ({"includeAll": True}, None, r"(llm-b-x2k4q|llm\\.a-9hj7c)"),
        ({}, None, "llm-b-x2k4q"),
        ({}, ["a.b"], r"a\\.b"),
        ({}, ["a", "b"], "(a|b)"),
        ({"includeAll": True, "regex": "/nothing(x)/"}, None, ""),
    ],
    ids=["its own all", "all", "the first", "escaped", "several", "none"],
)
def test_resolve(fields: dict[str, Any], given: list[str] | None, pattern: str) -> None:
    dashboard = {"templating": {"list": [{"name": "datasource", "type": "datasource"}, variable(**fields)]}}
    made = resolve(dashboard, Known(), {"pod": given} if given is not None else None)
    assert made.values["pod"].pattern == pattern
    assert made.range == "600s"


def test_a_variable_may_use_those_before_it() -> None:
    source = Known()
    before, after = variable(name="first"), variable(query='label_values(up{pod=~"$first"}, pod)')
    resolve({"templating": {"list": [before, after]}}, source)
    assert source.asked[-1] == 'up{pod=~"llm-b-x2k4q"}'
