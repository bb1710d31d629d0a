"""What the Prometheus operator makes of a PodMonitor or ServiceMonitor: a scrape configuration.

Written from the operator's documentation (the API of PodMonitor and ServiceMonitor): it keeps the targets whose labels
match the selector and whose port has the name asked for, drops pods that have ended, adds namespace, pod, container,
endpoint and job, and then applies the monitor's own relabelling. Service discovery is from a file here, with the labels
that Kubernetes' would give.
"""

from __future__ import annotations

import re
from typing import Any

from tests.manifests.kustomize import Document

Relabel = dict[str, Any]


def meta(name: str) -> str:
    """A Kubernetes label or annotation name as part of a Prometheus label name."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def pod_scrape_configs(monitor: Document, namespace: str, files: list[str]) -> list[dict[str, Any]]:
    """One scrape configuration for each endpoint of the PodMonitor, which stands in `namespace`."""
    spec, name = monitor["spec"], monitor["metadata"]["name"]
    made = []
    for index, endpoint in enumerate(spec["podMetricsEndpoints"]):
        relabelings = _selected("pod", spec["selector"])
        relabelings += _in_namespaces(spec.get("namespaceSelector", {}), namespace)
        relabelings.append(_keep("__meta_kubernetes_pod_container_port_name", endpoint["port"]))
        if endpoint.get("filterRunning", True):
            relabelings.append(
                {"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"}
            )
        relabelings += [
            _copy("__meta_kubernetes_namespace", "namespace"),
            _copy("__meta_kubernetes_pod_container_name", "container"),
            _copy("__meta_kubernetes_pod_name", "pod"),
            {"target_label": "job", "replacement": f"{namespace}/{name}"},
            {"target_label": "endpoint", "replacement": endpoint["port"]},
        ]
        made.append(_scrape_config(f"podMonitor/{namespace}/{name}/{index}", endpoint, relabelings, files))
    return made


def service_scrape_configs(monitor: Document, namespace: str, files: list[str]) -> list[dict[str, Any]]:
    """One scrape configuration for each endpoint of the ServiceMonitor, which stands in `namespace`."""
    spec, name = monitor["spec"], monitor["metadata"]["name"]
    made = []
    for index, endpoint in enumerate(spec["endpoints"]):
        relabelings = _selected("service", spec["selector"])
        relabelings += _in_namespaces(spec.get("namespaceSelector", {}), namespace)
        relabelings += [
            _keep("__meta_kubernetes_endpoint_port_name", endpoint["port"]),
            _copy("__meta_kubernetes_namespace", "namespace"),
            _copy("__meta_kubernetes_service_name", "service"),
            _copy("__meta_kubernetes_pod_name", "pod"),
            _copy("__meta_kubernetes_pod_container_name", "container"),
            _copy("__meta_kubernetes_service_name", "job"),
        ]
        if label := spec.get("jobLabel"):
            relabelings.append(
                {
                    "source_labels": [f"__meta_kubernetes_service_label_{meta(label)}"],
                    "regex": "(.+)",
                    "target_label": "job",
                    "replacement": "${1}",
                }
            )
        relabelings.append({"target_label": "endpoint", "replacement": endpoint["port"]})
        made.append(_scrape_config(f"serviceMonitor/{namespace}/{name}/{index}", endpoint, relabelings, files))
    return made


def _scrape_config(name: str, endpoint: dict[str, Any], relabelings: list[Relabel], files: list[str]) -> dict[str, Any]:
    known = {"port", "path", "scheme", "interval", "scrapeTimeout", "honorLabels", "relabelings", "filterRunning"}
    assert endpoint.keys() <= known, f"not translated here yet: {endpoint.keys() - known}"
    return {
        "job_name": name,
        "honor_labels": endpoint.get("honorLabels", False),
        "scheme": endpoint.get("scheme", "http").lower(),
        "metrics_path": endpoint.get("path", "/metrics"),
        "file_sd_configs": [{"files": files}],
        "relabel_configs": relabelings + [_snake_case(rule) for rule in endpoint.get("relabelings", [])],
    }


def _selected(role: str, selector: dict[str, Any]) -> list[Relabel]:
    made = []
    for label, value in selector.get("matchLabels", {}).items():
        made.append(_keep(f"__meta_kubernetes_{role}_label_{meta(label)}", re.escape(value)))
    for rule in selector.get("matchExpressions", []):
        name = meta(rule["key"])
        match rule["operator"]:
            case "Exists":
                made.append(_keep(f"__meta_kubernetes_{role}_labelpresent_{name}", "true"))
            case "In":
                made.append(_keep(f"__meta_kubernetes_{role}_label_{name}", "|".join(map(re.escape, rule["values"]))))
            case operator:
                raise AssertionError(f"not translated here yet: {operator}")
    return made


def _in_namespaces(selector: dict[str, Any], own: str) -> list[Relabel]:
    if selector.get("any"):
        return []
    return [_keep("__meta_kubernetes_namespace", "|".join(selector.get("matchNames", [own])))]


def _keep(label: str, regex: str) -> Relabel:
    return {"action": "keep", "source_labels": [label], "regex": f"({regex})"}


def _copy(source: str, target: str) -> Relabel:
    return {"source_labels": [source], "target_label": target}


def _snake_case(rule: dict[str, Any]) -> Relabel:
    made = {re.sub(r"[A-Z]", lambda letter: "_" + letter[0].lower(), key): value for key, value in rule.items()}
    return {**made, "action": made.get("action", "replace").lower()}
