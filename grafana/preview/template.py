"""Variables: their values, and texts with them put in, as Grafana's Prometheus data source does it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana.preview.source import Source

_USE = re.compile(r"\$\{(?P<braced>\w+)(?::(?P<form>\w+))?\}|\$(?P<plain>[A-Za-z_]\w*)")
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<selector>.+),\s*)?(?P<label>\w+)\)")
_QUERY_RESULT = re.compile(r"query_result\((?P<expression>.+)\)", re.DOTALL)


@dataclass(frozen=True)
class Chosen:
    """The value of a variable. texts: what its head shows. pattern: what stands for it in an expression."""

    texts: list[str]
    pattern: str


@dataclass(frozen=True)
class Template:
    """Puts variables and Grafana's own intervals into texts.

    values: by name. rate_interval, interval, range: durations as PromQL writes them.
    """

    values: Mapping[str, Chosen]
    rate_interval: str = "1m"
    interval: str = "15s"
    range: str = "15m"

    def expression(self, text: str) -> str:
        """A query with everything put in. Raises `KeyError` for a variable that nobody defines."""
        own = {"__rate_interval": self.rate_interval, "__interval": self.interval, "__range": self.range}

        def put(match: re.Match[str]) -> str:
            name = match["braced"] or match["plain"]
            return own[name] if name in own else self.values[name].pattern

        return _USE.sub(put, text)

    def title(self, text: str) -> str:
        """A title, with the values as the head shows them."""

        def put(match: re.Match[str]) -> str:
            name = match["braced"] or match["plain"]
            return " + ".join(self.values[name].texts) if name in self.values else match[0]

        return _USE.sub(put, text)

    def with_value(self, name: str, value: str) -> Template:
        """The same with one value of a variable, as a repeated row has it."""
        values = {**self.values, name: _chosen([value], [value])}
        return Template(values, self.rate_interval, self.interval, self.range)


def resolve(dashboard: Mapping[str, Any], source: Source, given: Mapping[str, Sequence[str]] | None = None) -> Template:
    """The dashboard's variables, each from the data source unless it is given, with the choice that Grafana starts
    with: all values where "All" is the current one, else the first."""
    template = Template({}, range=f"{max(1, math.ceil(source.end - source.start)) * source.speed}s")
    for variable in dashboard["templating"]["list"]:
        name = variable["name"]
        if variable["type"] == "datasource":
            chosen = Chosen(["Prometheus"], "prometheus")
        elif given is not None and name in given:
            chosen = _chosen(list(given[name]), list(given[name]))
        else:
            options = values_of(variable, source, template)
            if not variable.get("includeAll"):
                chosen = _chosen(options[:1], options[:1])
            elif variable.get("allValue"):
                chosen = Chosen(["All"], variable["allValue"])
            else:
                chosen = _chosen(["All"], options)
        template = Template({**template.values, name: chosen}, range=template.range)
    return template


def values_of(variable: Mapping[str, Any], source: Source, template: Template) -> list[str]:
    """A query variable's values, in its order. Raises `ValueError` for a form of query that is not known here."""
    query = variable["query"]
    if match := _LABEL_VALUES.fullmatch(query):
        sets = source.label_sets(template.expression(match["selector"]))
        found = [labels[match["label"]] for labels in sets if match["label"] in labels]
    elif match := _QUERY_RESULT.fullmatch(query):
        found = [_as_text(one.labels) for one in source.instant(template.expression(match["expression"]))]
    else:
        raise ValueError(f"a variable's query of another form: {query}")
    if regex := variable.get("regex"):
        matches = (re.search(regex.strip("/"), value) for value in found)
        found = [match[1] for match in matches if match is not None]
    return sorted(set(found), reverse=variable.get("sort") == 2)  # 2: alphabetical, descending


def _chosen(texts: list[str], values: list[str]) -> Chosen:
    # NOTE: several values become (a|b), one stands alone, none leaves nothing: `=~""` then finds no series of ours.
    escaped = [re.sub(r"([.*+?^${}()|\[\]\\])", r"\\\\\1", value) for value in values]
    return Chosen(texts, escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})" if escaped else "")


def _as_text(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
