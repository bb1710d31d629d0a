"""The rules of Grafana's dashboard linter, and some of our own, as checks of a dashboard's JSON.

Written from the linter's documentation (github.com/grafana/dashboard-linter, docs/rules). Its rules on the variables
`job` and `instance` are ours on `namespace` and `inferenceservice`: pods have no stable instance, and a service is
known by these two. Exceptions stand in `EXCEPTIONS`, each with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from grafana.preview.template import Chosen, Template
from grafana.preview.units import show
from tests.prometheus.promql import metric_names, nodes, selectors

Dashboard = dict[str, Any]
Panel = dict[str, Any]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

EXCEPTIONS = {
    r"ALERTS|ALERTS_FOR_STATE": "alerts on a pod or on Prometheus have no service: their matchers take the empty too",
    r"kube_.*": "kube-state-metrics knows namespaces and Deployments, and no InferenceService",
    r"keda_.*": "the object's namespace is exported_namespace where honorLabels is off: joined with our series",
    r"DCGM_FI_.*": "namespace and pod are the exporter's own where honorLabels is off: joined with our pods",
    r"inference_extension_.*": "the endpoint picker is known by its namespace and its pool, named as the service",
}
"""Metrics whose selectors need not have the matchers of ours, by pattern."""


HEAD = {"cluster": "Cluster", "namespace": "Namespace", "inferenceservice": "InferenceService", "pod": "Pod"}
"""Variables that every dashboard has beside the data source, with what they are called."""
SINGLE = {("pagedserve-versions", "inferenceservice"): "two versions of different services do not compare"}
"""Variables that have one value, each with its reason."""


@dataclass(frozen=True)
class Target:
    """One expression of a dashboard. where: the panel, variable or annotation that has it."""

    where: str
    expr: str
    panel: Panel | None = None
    target: dict[str, Any] | None = None


def panels(dashboard: Dashboard, *, rows: bool = False) -> Iterator[Panel]:
    """Its panels, those in collapsed rows too; `rows` gives the rows' heads as well."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row" or rows:
            yield panel
        yield from panel.get("panels", [])


def targets(dashboard: Dashboard) -> Iterator[Target]:
    """Every expression of every panel, variable and annotation."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield Target(f"panel {panel['id']} {target['refId']}: {panel['title']}", target["expr"], panel, target)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield Target(f"variable {variable['name']}", selector_of(variable["query"]))
    for event in dashboard["annotations"]["list"]:
        yield Target(f"annotation {event['name']}", event["target"]["expr"])


def selector_of(query: str) -> str:
    """The PromQL in a variable's query."""
    match = re.fullmatch(r"label_values\((.+), \w+\)|query_result\((.+)\)", query)
    assert match is not None, f"a variable's query of another form: {query}"
    return match[1] or match[2]


def stand_in(dashboard: Dashboard) -> Template:
    """Every variable with a value that says nothing: enough to parse an expression."""
    return Template({one["name"]: Chosen(["x"], "x") for one in dashboard["templating"]["list"]})


def bare(text: str) -> str:
    """An expression that parses with its variables still in it: Grafana's own intervals as 1m, ${name} as $name."""
    return re.sub(r"\$\{(\w+)\}", r"$\1", re.sub(r"\$__\w+", "1m", text))


# --- rules ----------------------------------------------------------------------------------------------------------


def uneditable(dashboard: Dashboard) -> Iterator[str]:
    if dashboard["editable"]:
        yield "it can be edited: a change would be lost with the next apply"


def data_source_variable(dashboard: Dashboard) -> Iterator[str]:
    first = dashboard["templating"]["list"][0]
    if (first["name"], first["type"], first["query"], first["label"]) != (
        "datasource",
        "datasource",
        "prometheus",
        "Data source",
    ):
        yield "the first variable is not the data source"
    if first.get("current", {}).get("value") != "default":
        yield "Grafana's default data source is not the one it begins with"


def variables(dashboard: Dashboard) -> Iterator[str]:
    found = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    for name, label in HEAD.items():
        variable = found.get(name)
        if variable is None:
            yield f"no variable {name}"
            continue
        several = variable["multi"] and variable["includeAll"] and variable["current"]["value"] == "$__all"
        if not several and (dashboard["uid"], name) not in SINGLE:
            yield f"{name} is not multi-valued with All first"
        if variable["label"] != label:
            yield f"{name} is called {variable['label']}"
    for variable in found.values():
        if variable["type"] == "query":
            if variable["refresh"] != 2:
                yield f"{variable['name']} is not loaded again when the time range changes"
            if variable["datasource"] != DATASOURCE:
                yield f"{variable['name']} has a data source of its own"
    if found["cluster"]["allValue"] != ".*":
        yield "All clusters leaves out series without the label"
    # NOTE: those that every dashboard has travel in links, even where a dashboard needs only some.
    kept = {"datasource", *HEAD}
    text = " ".join(one.expr + str(one.panel) for one in targets(dashboard)) + str(dashboard["panels"])
    for name in found.keys() - kept:
        if not re.search(rf"\$\{{?{name}\b", text):
            yield f"nothing uses {name}"


def panel_basics(dashboard: Dashboard) -> Iterator[str]:
    for panel in panels(dashboard):
        name = f"panel {panel['id']}"
        if not panel.get("title"):
            yield f"{name} has no title"
        text = panel.get("description", "")
        if "**Healthy:**" not in text or "**Next:**" not in text or len(text) < 80:
            yield f"{name} does not say what is healthy and where to look next"
        if panel.get("datasource") != DATASOURCE:
            yield f"{name} has a data source of its own"
        if not panel.get("targets"):
            yield f"{name} has no query"
        if any(target["datasource"] != DATASOURCE for target in panel["targets"]):
            yield f"{name} has a target with a data source of its own"
        if not panel["fieldConfig"]["defaults"].get("noValue"):
            yield f"{name} does not say what no data means"


def units(dashboard: Dashboard) -> Iterator[str]:
    for panel in panels(dashboard):
        found = [panel["fieldConfig"]["defaults"].get("unit")]
        found += [
            p["value"] for o in panel["fieldConfig"].get("overrides", []) for p in o["properties"] if p["id"] == "unit"
        ]
        for unit in found:
            try:
                show(1.0, unit)
            except ValueError:
                yield f"panel {panel['id']} has the unit {unit}"


UNITS = {
    r".*_seconds": "s",
    r".*_bytes": "bytes",
    r".*_ratio(:avg)?|.*:ratio_rate\w+": "percentunit",
}
"""Units that a metric's name tells, by pattern."""


def units_fit(dashboard: Dashboard) -> Iterator[str]:
    """Where a panel shows one metric as it is, or its quantile, the unit is that of the metric's name."""
    for one in targets(dashboard):
        if one.panel is None or one.panel["type"] == "table":
            continue
        names = metric_names(bare(one.expr))
        distribution = one.expr.startswith("histogram_quantile(") or one.panel["type"] == "heatmap"
        changed = "/" in one.expr or "100 *" in one.expr or re.search(r"\b(rate|increase)\(", one.expr)
        if len(names) != 1 or (changed and not distribution):
            continue
        name = names.pop().removesuffix("_bucket")
        wanted = next((unit for pattern, unit in UNITS.items() if re.fullmatch(pattern, name)), None)
        found = {one.panel["fieldConfig"]["defaults"].get("unit")}
        if one.panel["type"] == "heatmap":
            found.add(one.panel["options"]["yAxis"].get("unit"))
        if wanted is not None and found != {wanted}:
            yield f"{one.where}: {name} is shown in {found}"


def promql(dashboard: Dashboard) -> Iterator[str]:
    template = stand_in(dashboard)
    for one in targets(dashboard):
        try:
            nodes(template.expression(one.expr))
        except KeyError as name:
            yield f"{one.where}: no variable {name}"
        except ValueError as error:
            yield f"{one.where}: {error}"


def rate_interval(dashboard: Dashboard) -> Iterator[str]:
    """rate, irate and increase over $__rate_interval; over the whole range only where a panel shows one value of it."""
    for one in targets(dashboard):
        text = re.sub(r'"[^"]*"', '""', one.expr)  # a matcher's value may have brackets as well
        for function, window in re.findall(r"\b(i?rate|increase)\([^\[\]]*\[([^\]]+)\]", text):
            whole = window == "$__range" and one.target is not None and one.target.get("instant")
            if window != "$__rate_interval" and not whole:
                yield f"{one.where}: {function} over {window}"


def counters_are_rates(dashboard: Dashboard) -> Iterator[str]:
    for one in targets(dashboard):
        expr = re.sub(r"\s", "", one.expr)
        for name in re.findall(r"\b(\w+_total|\w+_bucket|\w+_count|\w+_sum)\{", expr):
            uses = len(re.findall(rf"\b{name}\{{", expr))
            rated = len(re.findall(rf"(?:rate|increase)\((?:label_replace\()*{name}\{{", expr))
            restarts = name == "kube_pod_container_status_restarts_total"  # the count itself is what is asked for
            if uses != rated and not restarts:
                yield f"{one.where}: {name} is a counter and no rate is taken of it"
    for one in targets(dashboard):
        if re.search(r"histogram_quantile\((?![\d.]+,sumby\(le[,)])", re.sub(r"\s", "", one.expr)):
            yield f"{one.where}: a quantile that is not of sum by (le, ...)"


def rates_are_of_counters(dashboard: Dashboard) -> Iterator[str]:
    for one in targets(dashboard):
        expr = re.sub(r"\s", "", one.expr)
        for name in re.findall(r"\b(?:i?rate|increase)\((?:label_replace\()*([\w:]+)", expr):
            if not re.fullmatch(r"\w+_(total|bucket|count|sum)", name):
                yield f"{one.where}: {name} is no counter, and a rate of it means nothing"


def numbers_are_of_now(dashboard: Dashboard) -> Iterator[str]:
    """Of a range Grafana shows the last sample that there is, be it hours old: a number's query is instant, or it has a
    sample to the end, which is the one that is shown."""
    for one in targets(dashboard):
        if one.panel is None or one.target is None or one.panel["type"] not in {"stat", "bargauge"}:
            continue
        ends = re.search(r"\bor\s+vector\(\w+\)$", one.expr) and one.panel["options"]["reduceOptions"]["calcs"] == [
            "last"
        ]
        if not one.target["instant"] and not ends:
            yield f"{one.where} may show a value of before"


def joins(dashboard: Dashboard) -> Iterator[str]:
    """What a group_left takes labels from is aggregated: two exporters of the same objects are no ambiguous match."""
    for one in targets(dashboard):
        for side in re.findall(r"group_left \([^)]*\)\s*(\w+)", one.expr):
            if side not in {"max", "sum", "count"}:
                yield f"{one.where}: group_left of {side}"


def matchers(dashboard: Dashboard) -> Iterator[str]:
    """Every selector has the cluster, and ours have the namespace and the service too; others have a reason not to."""
    for one in targets(dashboard):
        for selector in selectors(bare(one.expr)):
            found = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
            if found.get("cluster") != "$cluster" and one.where != "variable cluster":
                yield f"{one.where}: {selector.name} is of any cluster"
            if any(re.fullmatch(pattern, selector.name) for pattern in EXCEPTIONS):
                continue
            needed = {"namespace": "$namespace", "inferenceservice": "$inferenceservice"}
            if one.where.startswith("variable"):
                needed = {name: value for name, value in needed.items() if name in found}
            if any(found.get(name) != value for name, value in needed.items()):
                yield f"{one.where}: {selector.name} lacks {needed}"


def grid(dashboard: Dashboard) -> Iterator[str]:
    """Nothing overlaps or leaves the 24 columns; a row's panels begin right below it."""
    taken: dict[tuple[int, int], int] = {}
    for panel in dashboard["panels"]:
        yield from _place(panel, taken)
        inner: dict[tuple[int, int], int] = {}
        for one in panel.get("panels", []):
            yield from _place(one, inner)
            if one["gridPos"]["y"] <= panel["gridPos"]["y"]:
                yield f"panel {one['id']} is above its row"
    heights = {y for _, y in taken}
    if heights != set(range(len(heights))):
        yield "there is a gap between panels"


def _place(panel: Panel, taken: dict[tuple[int, int], int]) -> Iterator[str]:
    at = panel["gridPos"]
    if not (at["x"] >= 0 and at["x"] + at["w"] <= 24 and at["w"] > 0 and at["h"] > 0):
        yield f"panel {panel['id']} leaves the grid"
    for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
        if cell in taken:
            yield f"panel {panel['id']} lies on panel {taken[cell]}"
            return
        taken[cell] = panel["id"]


def ids(dashboard: Dashboard) -> Iterator[str]:
    found = [panel["id"] for panel in panels(dashboard, rows=True)]
    for panel_id in {one for one in found if found.count(one) > 1}:
        yield f"panel id {panel_id} is given twice"
    for panel in panels(dashboard):
        refs = [target["refId"] for target in panel["targets"]]
        if len(refs) != len(set(refs)):
            yield f"panel {panel['id']} gives a refId twice"


def legends(dashboard: Dashboard) -> Iterator[str]:
    """Every series has a name; tables and heatmaps show labels themselves."""
    for one in targets(dashboard):
        if one.panel is None or one.target is None or one.panel["type"] in {"table", "heatmap"}:
            continue
        if not one.target.get("legendFormat"):
            yield f"{one.where} has no legend"


def schema(dashboard: Dashboard) -> Iterator[str]:
    if not 39 <= dashboard["schemaVersion"] <= 42:
        yield f"schemaVersion {dashboard['schemaVersion']} is not what Grafana 11 to 13 load"
    if not re.fullmatch(r"[a-z-]{1,40}", dashboard["uid"]):
        yield f"uid {dashboard['uid']}"
    # NOTE: what the SDK adds and the types of @grafana/schema (11.6, 12.4, 13.2) do not have.
    for variable in dashboard["templating"]["list"]:
        if found := {"auto", "auto_count", "auto_min"} & variable.keys():
            yield f"variable {variable['name']} has {sorted(found)}, which only intervals have"
    for event in dashboard["annotations"]["list"]:
        if "expr" in event:
            yield f"annotation {event['name']} has its query beside its target"
    for panel in panels(dashboard):
        if "footer" in panel["options"] or "repeatDirection" in panel:
            yield f"panel {panel['id']} has options that Grafana no longer knows"


Rule = Callable[[Dashboard], Iterator[str]]

RULES: tuple[Rule, ...] = (
    uneditable,
    data_source_variable,
    variables,
    panel_basics,
    units,
    units_fit,
    promql,
    rate_interval,
    counters_are_rates,
    rates_are_of_counters,
    numbers_are_of_now,
    joins,
    matchers,
    grid,
    ids,
    legends,
    schema,
)
