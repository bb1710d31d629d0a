"""Each way to scrape gives the same targets the same labels: PodMonitor, ServiceMonitor, and Prometheus on its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.kustomize import REPOSITORY, build, one
from tests.prometheus.scrape import pod_scrape_configs, service_scrape_configs
from tests.prometheus.server import promtool
from tests.prometheus.world import kserve_pod_labels, pod_labels

Labels = dict[str, str]


def relabel(config: dict[str, Any], discovered: Labels) -> Labels | None:
    """The target's labels after `relabel_configs`, as Prometheus documents them; None where it is dropped."""
    labels = {"job": config["job_name"], **discovered}
    for rule in config["relabel_configs"]:
        value = ";".join(labels.get(name, "") for name in rule.get("source_labels", []))
        match = re.fullmatch(rule.get("regex", "(.*)"), value, re.DOTALL)
        action = rule.get("action", "replace")
        if action in {"keep", "drop"}:
            if (match is not None) != (action == "keep"):
                return None
            continue
        assert action == "replace"
        if match is not None:
            template = re.sub(r"\$\{?(\d)\}?", r"\\\1", rule.get("replacement", "$1"))
            labels[rule["target_label"]] = match.expand(template)
    return {name: value for name, value in labels.items() if not name.startswith("__")}


def by_any(configs: list[dict[str, Any]], discovered: Labels) -> list[Labels]:
    return [labels for config in configs if (labels := relabel(config, discovered)) is not None]


@pytest.fixture
def pod_configs() -> list[dict[str, Any]]:
    return pod_scrape_configs(one(build("manifests/monitoring/base"), "PodMonitor"), "monitoring", [])


@pytest.fixture
def service_configs() -> list[dict[str, Any]]:
    overlay = build("manifests/monitoring/overlays/servicemonitor")
    return service_scrape_configs(one(overlay, "ServiceMonitor"), "monitoring", [])


@pytest.fixture
def own_configs() -> list[dict[str, Any]]:
    text = (REPOSITORY / "docs/monitoring.md").read_text()
    (found,) = re.findall(r"^```yaml\n(scrape_configs.*?)^```", text, re.MULTILINE | re.DOTALL)
    return yaml.safe_load(found)["scrape_configs"]


EXPECTED = {"namespace": "default", "pod": "a", "container": "kserve-container", "inferenceservice": "llm"}


def test_pods_of_kserve(pod_configs: list[dict[str, Any]], own_configs: list[dict[str, Any]]) -> None:
    for port in ("http", "user-port"):
        pod = pod_labels("a", port, kserve_pod_labels())
        assert by_any(pod_configs, pod) == [{**EXPECTED, "job": "monitoring/pagedserve", "endpoint": port}]
        assert by_any(own_configs, pod) == [{**EXPECTED, "job": "pagedserve"}]


def test_what_is_not_scraped(pod_configs: list[dict[str, Any]], own_configs: list[dict[str, Any]]) -> None:
    ours = kserve_pod_labels()
    for pod in (
        pod_labels("a", "h2c-grpc", ours),
        pod_labels("a", "http", {"app": "other"}),
        pod_labels("a", "http", {**ours, "app.kubernetes.io/name": "pagedserve-other"}),
        {**pod_labels("a", "http", ours), "__meta_kubernetes_pod_phase": "Succeeded"},
    ):
        assert by_any(pod_configs, pod) == by_any(own_configs, pod) == []


def test_plain_deployments(pod_configs: list[dict[str, Any]], service_configs: list[dict[str, Any]]) -> None:
    documents = build("manifests/kserve/overlays/plain")
    template = one(documents, "Deployment")["spec"]["template"]
    service = one(documents, "Service")
    (container,) = template["spec"]["containers"]
    expected = {**EXPECTED, "container": container["name"], "endpoint": "http"}
    pod = {**pod_labels("a", "http", template["metadata"]["labels"])}
    pod["__meta_kubernetes_pod_container_name"] = container["name"]
    assert by_any(pod_configs, pod) == [{**expected, "job": "monitoring/pagedserve"}]

    endpoints = {**pod, "__meta_kubernetes_service_name": service["metadata"]["name"]}
    for name, value in service["metadata"]["labels"].items():
        endpoints["__meta_kubernetes_service_label_" + re.sub(r"\W", "_", name)] = value
    found = [
        labels
        for port in service["spec"]["ports"]
        for labels in by_any(service_configs, {**endpoints, "__meta_kubernetes_endpoint_port_name": port["name"]})
    ]
    assert found == [{**expected, "service": service["metadata"]["name"], "job": "pagedserve"}]


def test_the_name_of_an_instance_without_kserve(pod_configs: list[dict[str, Any]]) -> None:
    pod = pod_labels("a", "http", {"app.kubernetes.io/name": "pagedserve", "app.kubernetes.io/instance": "qwen"})
    (labels,) = by_any(pod_configs, pod)
    assert labels["inferenceservice"] == "qwen"


def test_prometheus_takes_the_configurations(
    tmp_path: Path, own_configs: list[dict[str, Any]], service_configs: list[dict[str, Any]]
) -> None:
    file = tmp_path / "prometheus.yml"
    for config in own_configs + service_configs:
        # NOTE: Debian builds Prometheus without Kubernetes' service discovery.
        config.pop("kubernetes_sd_configs", None)
        config["file_sd_configs"] = [{"files": [str(tmp_path / "targets.json")]}]
    file.write_text(yaml.safe_dump({"scrape_configs": own_configs + service_configs}))
    promtool("check", "config", "--syntax-only", str(file))
