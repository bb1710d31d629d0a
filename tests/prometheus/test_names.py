"""Every metric, label value, bucket, flag and alert that the manifests and their documentation name exists."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine.metrics import EngineMetrics
from engine.metrics_process import EngineProcessCollector
from predictor.flags import FLAGS
from predictor.service import REJECTION_REASONS
from tests.manifests.kustomize import MANIFESTS, REPOSITORY
from tests.prometheus.expressions import collect, external_reason, rules_file
from tests.prometheus.promql import matched_values, metric_names, selectors
from tests.prometheus.world import World

PAGES = ("monitoring.md", "autoscaling.md", "kubernetes.md")
RUNBOOKS = sorted((REPOSITORY / "docs/runbooks").glob("*.md"))
DOCUMENTS = [*RUNBOOKS, *(file for name in PAGES if (file := REPOSITORY / "docs" / name).is_file())]
# NOTE: not those behind a colon, which our rules record, nor those with a dash or slash, which are no metrics.
NAME = re.compile(r"(?<![\w:/.-])pagedserve_[a-z0-9_]+(?![\w:/-])")
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]


class Page:
    """A /metrics page taken apart."""

    def __init__(self, text: str) -> None:
        self.samples: dict[str, list[dict[str, str]]] = {}
        self.families: set[str] = set()
        for family in text_string_to_metric_families(text):
            self.families.add(family.name)
            # NOTE: the server leaves out the times at which counters began.
            for sample in (sample for sample in family.samples if not sample.name.endswith("_created")):
                self.samples.setdefault(sample.name, []).append(sample.labels)

    def faults(self, expression: str) -> list[str]:
        """What an expression names and this page and the other exporters lack."""
        faults = []
        for selector in selectors(expression):
            if external_reason(selector.name) is not None:
                continue
            if selector.name not in self.samples:
                faults.append(f"no metric {selector.name}")
                continue
            for matcher in selector.matchers.matchers:
                if matcher.name in {"namespace", "inferenceservice", "pod"} or str(matcher.op) != "MatchOp.Equal":
                    continue
                if not any(labels.get(matcher.name) == matcher.value for labels in self.samples[selector.name]):
                    faults.append(f"no {selector.name} with {matcher.name}={matcher.value!r}")
        return faults


@pytest.fixture(scope="module")
def page() -> Page:
    """What a server exports, without starting one."""
    registry = CollectorRegistry()
    EngineMetrics("llm", registry, rejection_reasons=REJECTION_REASONS)
    registry.register(EngineProcessCollector("llm", os.getpid))
    return Page(generate_latest(registry).decode())


def queries(text: str) -> list[str]:
    """The PromQL blocks of a document."""
    return re.findall(r"^```promql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_expressions_name_what_exists(page: Page) -> None:
    assert [(str(one), faults) for one in collect() if (faults := page.faults(one.text))] == []


def test_the_check_of_names_can_fail(page: Page) -> None:
    assert page.faults("vllm:num_requests_waiting") == ["no metric vllm:num_requests_waiting"]
    assert page.faults('pagedserve_requests_total{finish_reason="eos"}')
    assert page.faults('pagedserve_time_to_first_token_seconds_bucket{le="2"}')


def test_every_bucket_boundary_used_exists(page: Page) -> None:
    used = {pair for one in collect() for pair in matched_values(one.text, "le")}
    assert used
    for metric, boundary in used:
        assert boundary in {labels["le"] for labels in page.samples[metric]}


def test_recorded_names_are_recorded(page: Page) -> None:
    recorded = {rule["record"] for group in rules_file()["groups"] for rule in group["rules"] if "record" in rule}
    texts = [one.text for one in collect()] + [q for file in DOCUMENTS for q in queries(file.read_text())]
    used = {name for text in texts for name in metric_names(text) if name.startswith("inferenceservice:")}
    assert used <= recorded


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_documents_name_what_exists(file: Path, page: Page) -> None:
    text = file.read_text()
    for query in queries(text):
        assert page.faults(query) == [], query
    assert {name for name in NAME.findall(text) if name not in page.samples and name not in page.families} == set()
    flags = {flag.name for flag in FLAGS}
    assert {name for name in re.findall(r"`--([a-z]+(?:_[a-z]+)+)", text) if name not in flags} == set()


def test_manifests_name_what_exists(page: Page) -> None:
    """In any form, comments and configuration of other programs included; prometheus-adapter gives names of its own."""
    given = set()
    for file in MANIFESTS.rglob("*.yaml"):
        given |= set(re.findall(r"^\s*as: (pagedserve_\w+)$", file.read_text(), re.MULTILINE))
    for file in MANIFESTS.rglob("*.yaml"):
        names = {re.sub(r"[{].*", "", name) for name in NAME.findall(file.read_text())}
        assert names - page.samples.keys() - page.families - given == set(), file


def test_every_runbook_belongs_to_an_alert() -> None:
    alerts = {rule["alert"] for group in rules_file()["groups"] for rule in group["rules"] if "alert" in rule}
    assert {file.stem for file in RUNBOOKS} == alerts


@pytest.mark.parametrize("file", RUNBOOKS, ids=lambda file: file.stem)
def test_runbooks_have_their_sections_and_queries(file: Path) -> None:
    text = file.read_text()
    assert text.startswith(f"# {file.stem}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert queries(text), "no query to diagnose with"
    assert "kubectl " in text
    for name in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (file.parent / name).is_file(), name


def test_the_live_page_has_what_the_checks_rely_on(world: World, page: Page) -> None:
    live = Page(world.metrics)
    ours = {name for name in live.samples if name.startswith("pagedserve_")}
    assert ours == page.samples.keys()
    assert [(str(one), faults) for one in collect() if (faults := live.faults(one.text))] == []


def test_queries_of_the_documents_run(world: World) -> None:
    for file in DOCUMENTS:
        for query in queries(file.read_text()):
            world.prometheus.query(query, world.two[-1])


def test_alerts_and_rules_are_listed_in_the_documentation() -> None:
    text = (REPOSITORY / "docs/monitoring.md").read_text()
    for group in rules_file()["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert f"[{rule['alert']}](runbooks/{rule['alert']}.md)" in text
    assert yaml.safe_load(re.findall(r"^```yaml\n(scrape_configs.*?)^```", text, re.MULTILINE | re.DOTALL)[0])
