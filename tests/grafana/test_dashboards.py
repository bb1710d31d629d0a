"""The committed JSON is what the code makes, keeps the rules of the linter, and leads to places that exist."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from grafana.boards import signals
from grafana.boards.slo import OBJECTIVES
from grafana.catalogue import FOLDER, boards, write
from grafana.links import DOCS, RUNBOOKS, UIDS
from predictor.flags import FLAGS
from tests.grafana.linter import HEAD, RULES, Dashboard, Panel, Rule, bare, panels, schema, targets
from tests.manifests.kustomize import REPOSITORY
from tests.prometheus.promql import metric_names

FILES = sorted(FOLDER.glob("*.json"))
DASHBOARDS: dict[str, Dashboard] = {file.stem: json.loads(file.read_text()) for file in FILES}


def test_the_code_makes_the_committed_files_byte_for_byte(tmp_path: Path) -> None:
    made = write(tmp_path)
    assert sorted(file.name for file in made) == [file.name for file in FILES]
    for file in made:
        assert file.read_bytes() == (FOLDER / file.name).read_bytes(), "run `make dashboards` and commit what it writes"


def test_every_dashboard_has_its_uid_and_file() -> None:
    assert {board.title: board.uid for board in boards()} == UIDS
    assert {d["uid"] for d in DASHBOARDS.values()} == set(UIDS.values()) == set(DASHBOARDS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("uid", DASHBOARDS)
def test_rule(uid: str, rule: Rule) -> None:
    assert list(rule(DASHBOARDS[uid])) == []


def _broken(change: Callable[[Dashboard], Any]) -> Dashboard:
    made = copy.deepcopy(DASHBOARDS["pagedserve-service"])
    change(made)
    return made


def _first(dashboard: Dashboard, kind: str = "timeseries") -> Any:
    return next(panel for panel in panels(dashboard) if panel["type"] == kind)


def _panel(dashboard: Dashboard, panel_id: int) -> Any:
    return next(panel for panel in panels(dashboard) if panel["id"] == panel_id)


def _expr(text: str) -> Callable[[Dashboard], Any]:
    return lambda dashboard: _first(dashboard)["targets"][0].update(expr=text)


OURS = 'cluster=~"$cluster",namespace=~"$namespace",inferenceservice=~"$inferenceservice"'
FAULTS: dict[str, Callable[[Dashboard], Any]] = {
    "uneditable": lambda d: d.update(editable=True),
    "data_source_variable": lambda d: d["templating"]["list"].pop(0),
    "variables": lambda d: d["templating"]["list"][3].update(multi=False),
    "panel_basics": lambda d: _first(d).update(description="Latency."),
    "units": lambda d: _first(d)["fieldConfig"]["defaults"].pop("unit"),
    "units_fit": lambda d: _panel(d, 41)["fieldConfig"]["defaults"].update(unit="percent"),
    "promql": _expr("sum(rate(a[$__rate_interval])"),
    "rate_interval": _expr(f"sum(rate(pagedserve_requests_total{{{OURS}}}[5m]))"),
    "counters_are_rates": _expr(f"sum(pagedserve_requests_total{{{OURS}}})"),
    "rates_are_of_counters": _expr(f"sum(rate(pagedserve_requests_waiting{{{OURS}}}[$__rate_interval]))"),
    "numbers_are_of_now": lambda d: _first(d, "stat")["options"]["reduceOptions"].update(calcs=["lastNotNull"]),
    "joins": _expr(f"a * on (namespace) group_left (b) c{{{OURS}}}"),
    "matchers": _expr("sum(pagedserve_requests_running)"),
    "grid": lambda d: _first(d)["gridPos"].update(w=24),
    "ids": lambda d: _first(d).update(id=1),
    "legends": lambda d: _first(d)["targets"][0].update(legendFormat=""),
    "schema": lambda d: d.update(schemaVersion=43),
}
UNKNOWN: dict[str, Callable[[Dashboard], Any]] = {
    "variable": lambda d: d["templating"]["list"][1].update(auto=False),
    "annotation": lambda d: d["annotations"]["list"][0].update(expr="ALERTS"),
    "table": lambda d: _first(d, "table")["options"].update(footer={"show": False}),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_can_fail(rule: Rule) -> None:
    assert list(rule(_broken(FAULTS[rule.__name__])))


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_what_grafanas_schema_does_not_have_is_found(change: Callable[[Dashboard], Any]) -> None:
    assert len(list(schema(_broken(change)))) == 1


# --- where they lead -------------------------------------------------------------------------------------------------


def _panel_ids(uid: str) -> set[int]:
    return {panel["id"] for panel in panels(DASHBOARDS[uid])}


def faults_of(url: str) -> list[str]:
    """What is wrong with a link: no such page, runbook, dashboard or panel, or a variable that is lost on the way."""
    if url.startswith(RUNBOOKS):
        name = url.removeprefix(RUNBOOKS).replace("${__value.raw}", "PagedServeEngineDown")
        return [] if (REPOSITORY / "docs/runbooks" / name).is_file() else [f"no runbook {name}"]
    if url.startswith(DOCS):
        return [] if (REPOSITORY / "docs" / url.removeprefix(DOCS)).is_file() else [f"no page {url}"]
    parts = urlsplit(re.sub(r"\$\{[^}]*\}", "", url))
    uid = parts.path.removeprefix("/d/")
    if not parts.path.startswith("/d/") or uid not in DASHBOARDS:
        return [f"no dashboard {url}"]
    chosen = parse_qs(parts.query)
    wanted = {int(one) for one in chosen.get("viewPanel", [])}
    known = {variable["name"] for variable in DASHBOARDS[uid]["templating"]["list"]}
    named = {name.removeprefix("var-") for name in chosen if name.startswith("var-")}
    named |= set(re.findall(r"\$\{(\w+):queryparam\}", url))
    return [f"no panel {one} on {uid}" for one in wanted - _panel_ids(uid)] + [
        f"no variable {one} on {uid}" for one in named - known
    ]


def urls(dashboard: Dashboard) -> list[str]:
    return [link["url"] for link in dashboard["links"]] + [url for one in panels(dashboard) for url in urls_of(one)]


def urls_of(panel: Panel) -> list[str]:
    found = [link["url"] for link in panel.get("links", [])]
    for override in panel["fieldConfig"].get("overrides", []):
        found += [link["url"] for one in override["properties"] if one["id"] == "links" for link in one["value"]]
    return found


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_links_lead_somewhere(uid: str) -> None:
    assert [fault for url in urls(DASHBOARDS[uid]) for fault in faults_of(url)] == []


@pytest.mark.parametrize(
    "url",
    [f"{RUNBOOKS}PagedServeNothing.md", f"{DOCS}nothing.md", "/d/nothing", "/d/pagedserve-engine?viewPanel=9999"],
)
def test_the_check_of_links_can_fail(url: str) -> None:
    assert faults_of(url)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_dashboard_leads_to_the_others_with_time_and_variables(uid: str) -> None:
    links = DASHBOARDS[uid]["links"]
    assert {link["url"] for link in links if link["url"].startswith("/d/")} == {
        f"/d/{other}" for other in DASHBOARDS if other != uid
    }
    assert all(link["keepTime"] and link["includeVars"] for link in links if link["url"].startswith("/d/"))


def lost_by(url: str) -> list[str]:
    """What a link to a panel or a row's dashboard leaves behind: the time range, or one of the choices in the head."""
    kept = set(re.findall(r"\$\{(\w+)(?::queryparam)?\}", url)) | set(re.findall(r"\bvar-(\w+)=", url))
    return sorted({"__url_time_range", "datasource", *HEAD} - kept)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_links_of_panels_keep_time_and_variables(uid: str) -> None:
    found = [url for panel in panels(DASHBOARDS[uid]) for url in urls_of(panel) if url.startswith("/d/")]
    assert {url: lost for url in found if (lost := lost_by(url))} == {}


def test_the_check_of_what_links_keep_can_fail() -> None:
    assert lost_by("/d/pagedserve-engine?viewPanel=10&${datasource:queryparam}&var-namespace=a&var-pod=b") == [
        "__url_time_range",
        "cluster",
        "inferenceservice",
    ]


def alert_rules() -> list[dict[str, Any]]:
    text = yaml.safe_load((REPOSITORY / "manifests/monitoring/base/alerts.yaml").read_text())
    return [rule for group in text["spec"]["groups"] for rule in group["rules"]]


def test_every_alert_leads_to_a_panel_of_its_service() -> None:
    for rule in alert_rules():
        url = rule["annotations"]["dashboard_url"]
        assert url.startswith("https://grafana.example.com/d/"), rule["alert"]
        assert faults_of(url.removeprefix("https://grafana.example.com")) == [], rule["alert"]
        for label in re.findall(r"\$labels\.(\w+)", url):
            assert f"var-{label}={{{{ $labels.{label} }}}}" in url, "a variable is named as its label"


def test_every_runbook_is_linked_from_a_panel() -> None:
    linked = {url.removeprefix(RUNBOOKS) for dashboard in DASHBOARDS.values() for url in urls(dashboard)}
    # NOTE: this one tells that panels have no data; no panel is about it.
    wanted = {file.name for file in (REPOSITORY / "docs/runbooks").glob("*.md")} - {
        "PagedServeKubeStateMetricsAbsent.md"
    }
    assert wanted <= linked


# --- what they say is what others say --------------------------------------------------------------------------------


def test_objectives_are_those_of_the_alerts() -> None:
    for slo in OBJECTIVES:
        rules = [rule for rule in alert_rules() if rule["alert"] == slo.alert]
        assert rules
        assert all(f"{slo.record}1" in rule["expr"] and f"* {slo.budget:g})" in rule["expr"] for rule in rules)


@pytest.mark.parametrize("metric", ["pagedserve_time_to_first_token_seconds", "pagedserve_inter_token_latency_seconds"])
def test_lines_of_latencies_are_the_objectives(metric: str) -> None:
    slo = (REPOSITORY / "manifests/monitoring/base/slo.yaml").read_text()
    (objective,) = set(re.findall(rf'{metric}_bucket{{le="([^"]+)"}}', slo))
    shown = [
        panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"]
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        if panel["type"] == "timeseries"
        and {name for target in panel["targets"] for name in metric_names(bare(target["expr"]))} == {metric + "_bucket"}
    ]
    assert len(shown) >= 3
    assert set(shown) == {float(objective)}


def test_the_autoscaling_dashboard_has_the_queries_of_the_scaled_object() -> None:
    """For the service of the variables in place of the one of the manifest, a sum for each service in place of one."""
    triggers = yaml.safe_load((REPOSITORY / "manifests/keda/base/scaledobject.yaml").read_text())["spec"]["triggers"]
    shipped = {trigger["name"]: trigger["metadata"]["query"] for trigger in triggers}

    def normal(text: str) -> str:
        text = text.replace(OURS, "OURS")
        text = text.replace('namespace="default",inferenceservice="llm"', "OURS")
        return re.sub(r"\s", "", text.replace("sum by (namespace, inferenceservice) (", "sum("))

    assert {name: normal(query) for name, query in shipped.items()} == {
        "requests": normal(signals.REQUESTS),
        "kv_usage": normal(signals.KV_USAGE),
    }
    used = [one.expr for one in targets(DASHBOARDS["pagedserve-autoscaling"])]
    for query in (signals.REQUESTS, signals.KV_USAGE):
        assert any(query in expr for expr in used)


def test_descriptions_name_flags_that_exist() -> None:
    text = " ".join(panel["description"] for dashboard in DASHBOARDS.values() for panel in panels(dashboard))
    named = set(re.findall(r"--([a-z_]+)", text))
    assert named
    assert named <= {flag.name for flag in FLAGS}


def test_descriptions_name_alerts_that_exist() -> None:
    text = " ".join(panel["description"] for dashboard in DASHBOARDS.values() for panel in panels(dashboard))
    named = set(re.findall(r"\bPagedServe\w+", text))
    assert named
    assert named <= {rule["alert"] for rule in alert_rules()}


def test_docs_name_the_dashboards() -> None:
    text = (REPOSITORY / "docs/dashboards.md").read_text()
    for title, uid in UIDS.items():
        assert title in text
        assert uid in text
