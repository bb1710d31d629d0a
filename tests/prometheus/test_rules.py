"""Recording rules and alerts under promtool: valid, silent in health and firing in their fault."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.kustomize import build, of_kind
from tests.prometheus.expressions import rules_file, rules_of
from tests.prometheus.server import promtool, tool

FOLDER = Path(__file__).parent / "rules"
REPOSITORY = Path(__file__).parents[2]
ALERTS = sorted(file.stem for file in FOLDER.glob("*.yaml"))
RUNBOOKS = "https://runbooks.example.com/"
SEVERITIES = {"critical", "warning", "info"}


def alert_rules() -> list[dict[str, Any]]:
    return [rule for group in rules_file()["groups"] for rule in group["rules"] if "alert" in rule]


def write_rules(folder: Path, alert: str, **changes: str) -> None:
    """The alert's rule file as promtool's test names it; `changes` replace fields of the alert's own rules."""
    rules = rules_of(alert)
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                rule.update(changes)
    (folder / f"{alert}.rules.yml").write_text(yaml.safe_dump(rules, sort_keys=False))
    (folder / f"{alert}.yaml").write_text((FOLDER / f"{alert}.yaml").read_text())


def firings(alert: str) -> list[tuple[str, bool]]:
    """(severity, whether it is expected to fire) of each expectation."""
    found = []
    for test in yaml.safe_load((FOLDER / f"{alert}.yaml").read_text())["tests"]:
        for expectation in test["promql_expr_test"]:
            severity = re.search(r'severity="(\w+)"', expectation["expr"])
            assert severity is not None
            assert f'alertname="{alert}"' in expectation["expr"]
            found.append((severity[1], bool(expectation["exp_samples"])))
    return found


def test_rule_files_pass_promtool(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(rules_file(), sort_keys=False))
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(file))


def test_every_alert_has_its_tests() -> None:
    assert sorted({rule["alert"] for rule in alert_rules()}) == ALERTS
    for rule in alert_rules():
        expected = [fires for severity, fires in firings(rule["alert"]) if severity == rule["labels"]["severity"]]
        assert True in expected, f"{rule['alert']} {rule['labels']['severity']} is never expected to fire"
        assert False in expected, f"{rule['alert']} {rule['labels']['severity']} is never expected to be silent"


@pytest.mark.parametrize("alert", ALERTS)
def test_silent_in_health_and_firing_in_its_fault(alert: str, tmp_path: Path) -> None:
    write_rules(tmp_path, alert)
    promtool("test", "rules", f"{alert}.yaml", cwd=tmp_path)


@pytest.mark.parametrize("expr", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
def test_the_tests_notice_a_broken_alert(expr: str, tmp_path: Path) -> None:
    """Each alert's test fails where its rule never fires, and where it always does."""
    quick = [alert for alert in ALERTS if not alert.endswith("SLOBurn")]
    for alert in quick:
        write_rules(tmp_path, alert, expr=expr)
        command = [tool("promtool"), "test", "rules", f"{alert}.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert "FAILED" in done.stdout + done.stderr, f"the tests of {alert} pass with {expr!r}"


def test_alerts_say_what_to_do() -> None:
    for rule in alert_rules():
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in SEVERITIES
        annotations = rule["annotations"]
        assert annotations.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
        assert annotations["runbook_url"] == f"{RUNBOOKS}{rule['alert']}.md"
        assert (REPOSITORY / "docs/runbooks" / annotations["runbook_url"].removeprefix(RUNBOOKS)).is_file()
        assert len(annotations["description"]) > 100


def test_templates_name_labels_that_the_alert_has() -> None:
    for rule in alert_rules():
        file = yaml.safe_load((FOLDER / f"{rule['alert']}.yaml").read_text())
        labels = {
            name
            for test in file["tests"]
            for expectation in test["promql_expr_test"]
            for sample in expectation["exp_samples"]
            for name in re.findall(r'(\w+)="', sample["labels"])
        }
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert used <= labels, f"{rule['alert']} uses {used - labels}"


def test_a_service_level_is_one_expression_in_several_windows() -> None:
    """The windows of an SLO differ in nothing but the window, and the alert compares a long and a short one equally."""
    by_slo: dict[str, set[str]] = {}
    for group in rules_file()["groups"]:
        for rule in group["rules"]:
            if match := re.fullmatch(
                r"(inferenceservice:\w+:ratio_rate)(5m|30m|1h|2h|6h|1d|3d)", rule.get("record", "")
            ):
                by_slo.setdefault(match[1], set()).add(rule["expr"].replace(f"[{match[2]}]", "[window]").strip())
    slos = {name: texts for name, texts in by_slo.items() if "slow" in name or "errors" in name}
    assert len(slos) == 3
    assert all(len(texts) == 1 for texts in slos.values())
    for rule in alert_rules():
        if rule["alert"].endswith("SLOBurn"):
            legs = re.findall(r":ratio_rate(\w+) > \(([\d.]+) \* ([\d.]+)\)", rule["expr"])
            windows = [(leg[0], float(leg[1])) for leg in legs]
            assert len({leg[2] for leg in legs}) == 1
            assert windows in (
                [("1h", 14.4), ("5m", 14.4), ("6h", 6), ("30m", 6)],
                [("1d", 3), ("2h", 3), ("3d", 1), ("6h", 1)],
            )


def test_objectives_in_words_are_those_in_numbers() -> None:
    """The rules, the alerts' words and docs/monitoring.md state the same thresholds."""
    text = (REPOSITORY / "docs/monitoring.md").read_text()
    for name, budget, bound in (("FirstToken", "0.05", "2.5"), ("InterToken", "0.01", "0.25"), ("Error", "0.005", "")):
        rules = [rule for rule in alert_rules() if rule["alert"] == f"PagedServe{name}SLOBurn"]
        objective = f"objective: {float(budget) * 100:g} %"
        assert len(rules) == 2
        for rule in rules:
            assert f"* {budget})" in rule["expr"]
            assert objective in rule["annotations"]["summary"]
            assert bound in rule["annotations"]["summary"]
        assert f"| {100 - float(budget) * 100:g} %" in text


def test_the_rules_of_a_prometheus_without_operator(tmp_path: Path) -> None:
    """docs/monitoring.md takes the rules out of the manifests with sed: the result is what the operator would load."""
    (command,) = re.findall(r"^for .*sed .*done$", (REPOSITORY / "docs/monitoring.md").read_text(), re.MULTILINE)
    command = command.replace("/etc/prometheus/rules", str(tmp_path))
    subprocess.run(["sh", "-c", command], cwd=REPOSITORY, check=True)
    files = sorted(tmp_path.iterdir())
    promtool("check", "rules", *map(str, files))
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    built = [g for d in of_kind(build("manifests/monitoring/base"), "PrometheusRule") for g in d["spec"]["groups"]]
    key = lambda group: group["name"]  # noqa: E731
    assert sorted(groups, key=key) == sorted(built, key=key)


def test_the_documented_command_sets_the_base_of_every_runbook() -> None:
    (script,) = re.findall(r"sed '(s#.*#)'", (REPOSITORY / "docs/monitoring.md").read_text())
    _, _, base, _ = script.split("#")
    file = REPOSITORY / "manifests/monitoring/base/alerts.yaml"
    command = ["sed", script, str(file)]
    changed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    rules = [rule for group in yaml.safe_load(changed)["spec"]["groups"] for rule in group["rules"]]
    assert {rule["annotations"]["runbook_url"] for rule in rules} == {f"{base}{name}.md" for name in ALERTS}
