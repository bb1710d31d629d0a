"""The ways to bring the dashboards into a Grafana: ConfigMaps for the sidecar, and a provisioning folder."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import yaml

from grafana.catalogue import FOLDER
from tests.manifests.kustomize import REPOSITORY, build, of_kind
from tests.manifests.schemas import validate

FILES = {file.name: file.read_text() for file in FOLDER.glob("*.json")}
PAGE = (REPOSITORY / "docs/dashboards.md").read_text()


@pytest.mark.parametrize("folder", ["grafana", "manifests/monitoring/overlays/kube-prometheus-stack"])
def test_the_sidecar_gets_every_dashboard(folder: str) -> None:
    maps = of_kind(build(folder), "ConfigMap")
    found = {}
    for one in maps:
        validate(one)
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        found |= one["data"]
        # NOTE: `kubectl apply` keeps the whole document in an annotation, and all annotations have 256 KiB.
        assert len(json.dumps(one).encode()) < 250 * 1024
    assert found == FILES


def test_the_provider_reads_the_folder_that_the_page_mounts() -> None:
    (provider,) = yaml.safe_load((REPOSITORY / "grafana/provisioning/dashboards/pagedserve.yaml").read_text())[
        "providers"
    ]
    assert provider["type"] == "file"
    assert not provider["allowUiUpdates"]
    assert f"`grafana/dashboards` as `{provider['options']['path']}`" in PAGE


def test_the_example_data_source_knows_the_scrape_interval() -> None:
    (source,) = yaml.safe_load((REPOSITORY / "grafana/provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    intervals = {
        endpoint["interval"]
        for monitor in of_kind(build("manifests/monitoring/base"), "PodMonitor")
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    }
    assert {source["jsonData"]["timeInterval"]} == intervals
    assert source["type"] == "prometheus"


def test_the_page_keeps_the_release_label_where_prometheus_selects_by_it() -> None:
    """Applied from the base over the overlay the rules would lose the label: the page names the overlay instead."""
    overlay = "manifests/monitoring/overlays/kube-prometheus-stack"
    rules = {folder: of_kind(build(folder), "PrometheusRule") for folder in (overlay, "manifests/monitoring/base")}
    has = {folder: {"release" in one["metadata"].get("labels", {}) for one in made} for folder, made in rules.items()}
    assert has == {overlay: {True}, "manifests/monitoring/base": {False}}
    _, _, after = PAGE.partition("for k in grafana manifests/monitoring/base;")
    assert f"the one folder `{overlay}` takes the place of the two" in after


def test_the_documented_command_leaves_no_placeholder() -> None:
    """With a kubectl that shows what it would apply."""
    (script,) = re.findall(r"^for k in .*?^\| kubectl apply [^\n]*$", PAGE, re.MULTILINE | re.DOTALL)
    (rules,) = re.findall(r"sed '(.*)' \\", script)
    for folder in ("grafana", "manifests/monitoring/base"):
        assert f" {folder}" in script.splitlines()[0]
        text = "\n".join(yaml.safe_dump(document, width=10_000) for document in build(folder))
        changed = subprocess.run(
            ["sed", rules], input=text, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        assert "example.com/" in text
        assert re.findall(r"https://(?:runbooks|docs|grafana)\.example\.com", changed) == []
