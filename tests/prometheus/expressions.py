"""Every PromQL expression that the bundle ships, collected from the built overlays."""

from __future__ import annotations

import copy
import functools
import re
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from tests.manifests.kustomize import Document, build, of_kind
from tests.manifests.overlays import OVERLAYS
from tests.prometheus.promql import metric_names, shorten, shorten_duration

Promise = Literal["one", "one a pod", "any"]

NAMESPACE, SERVICE = "default", "llm"
"""Where the tests' pods seem to run."""

EXTERNAL = {
    r"kube_.*": "kube-state-metrics: objects of the cluster, which no predictor can know",
    r"DCGM_FI_.*": "NVIDIA's DCGM exporter: utilisation of the GPUs",
    r"keda_.*": "KEDA's operator: triggers that it could not evaluate",
    r"inference_extension_.*": "the endpoint picker of the Gateway API Inference Extension: requests that wait in it",
    r"container_.*": "the kubelet's cAdvisor: memory and CPU of containers",
    r"up|scrape_.*": "Prometheus itself: whether a scrape succeeded, and how long it took",
    r"inferenceservice:pagedserve_.*": "recorded by our own rules",
}
"""Metrics that are not on a predictor's /metrics, by pattern, and who exports them."""


@dataclass(frozen=True)
class Expression:
    """One expression.

    source: the first overlay that has it, kind and name, and where in it. promise: how many samples it has while the
    service has replicas. The sample is finite. empty_is_error: a ScaledObject's `ignoreNullValues: "false"`.
    """

    source: str
    kind: Literal["record", "alert", "scaler", "adapter"]
    text: str
    promise: Promise
    name: str = ""
    empty_is_error: bool | None = None

    def __str__(self) -> str:
        return self.source


def external_reason(metric: str) -> str | None:
    """Who exports a metric that is not ours; None for one that ought to be on /metrics."""
    return next((reason for pattern, reason in EXTERNAL.items() if re.fullmatch(pattern, metric)), None)


def retarget(text: str) -> str:
    """The expression with the namespace and service of the tests' pods."""
    text = re.sub(r'\bnamespace="[^"]*"', f'namespace="{NAMESPACE}"', text)
    return re.sub(r'\binferenceservice="[^"]*"', f'inferenceservice="{SERVICE}"', text)


@functools.cache
def collect() -> list[Expression]:
    """Those of every overlay, each text once. Raises `ValueError` where one is no PromQL."""
    found: dict[tuple[str, str, str, bool | None], Expression] = {}
    for overlay in OVERLAYS:
        for document in build(overlay):
            for one in _of(document, overlay):
                found.setdefault((one.kind, one.name, one.text, one.empty_is_error), one)
    for one in found.values():
        metric_names(one.text)
    return list(found.values())


def _of(document: Document, overlay: str) -> list[Expression]:
    where = f"{overlay.removeprefix('manifests/')}: {document['kind']} {document['metadata']['name']}"
    match document["kind"]:
        case "PrometheusRule":
            return [_rule(rule, where) for group in document["spec"]["groups"] for rule in group["rules"]]
        case "ScaledObject":
            return [
                _scaler(trigger["metadata"], f"{where} {trigger.get('name', index)}")
                for index, trigger in enumerate(document["spec"]["triggers"])
                if trigger["type"] == "prometheus"
            ]
        case "InferenceService":
            metrics = document["spec"]["predictor"].get("autoScaling", {}).get("metrics", [])
            return [
                _scaler(metric["external"]["metric"], f"{where} {index}")
                for index, metric in enumerate(metrics)
                if metric["type"] == "External"
            ]
        case "ConfigMap":
            return _adapter(document, where)
    return []


def _rule(rule: dict[str, Any], where: str) -> Expression:
    if "record" in rule:
        return Expression(f"{where} {rule['record']}", "record", rule["expr"], "one", rule["record"])
    severity = rule["labels"]["severity"]
    return Expression(
        f"{where} {rule['alert']} {severity}", "alert", rule["expr"], "any", f"{rule['alert']} {severity}"
    )


def _scaler(metadata: dict[str, Any], where: str) -> Expression:
    # NOTE: KEDA's default of ignoreNullValues is true.
    is_error = metadata.get("ignoreNullValues", "true") == "false"
    return Expression(where, "scaler", retarget(metadata["query"]), "one", empty_is_error=is_error)


def _adapter(document: Document, where: str) -> list[Expression]:
    """Rules of prometheus-adapter, their templates filled as the adapter would for an HPA of the tests' service."""
    made = []
    for text in document.get("data", {}).values():
        if "metricsQuery" not in text:
            continue
        config = yaml.safe_load(text)
        assert config.keys() <= {"rules", "externalRules"}, f"not translated here yet: {config.keys()}"
        for kind, promise in (("externalRules", "one"), ("rules", "one a pod")):
            for rule in config.get(kind, []):
                labels = {of["resource"]: label for label, of in rule["resources"]["overrides"].items()}
                value = f'{labels["pod"]}=~".+"' if "pod" in labels else f'inferenceservice="{SERVICE}"'
                matchers = f'{labels["namespace"]}="{NAMESPACE}",{value}'
                query = rule["metricsQuery"].replace("<<.LabelMatchers>>", matchers)
                query = query.replace("<<.GroupBy>>", labels.get("pod", "inferenceservice"))
                assert "<<" not in query, f"not translated here yet: {query}"
                made.append(Expression(f"{where} {rule['name']['as']}", "adapter", query, promise))
                series = f"{where} {rule['name']['as']} seriesQuery"
                made.append(Expression(series, "adapter", rule["seriesQuery"], "any"))
    return made


def rules_file(factor: int = 1) -> dict[str, Any]:
    """The groups of the base's PrometheusRules as one Prometheus rule file, with every duration divided by `factor`."""
    built = [g for d in of_kind(build("manifests/monitoring/base"), "PrometheusRule") for g in d["spec"]["groups"]]
    if factor == 1:
        return {"groups": copy.deepcopy(built)}  # the build is shared
    groups = []
    for group in built:
        changed = {**group, "rules": []}
        if "interval" in group:
            changed["interval"] = shorten_duration(group["interval"], factor)
        for rule in group["rules"]:
            changed["rules"].append({**rule, "expr": shorten(rule["expr"], factor)})
            if "for" in rule:
                changed["rules"][-1]["for"] = shorten_duration(rule["for"], factor)
        groups.append(changed)
    return {"groups": groups}


def rules_of(alert: str) -> dict[str, Any]:
    """A rule file with the rules of one alert and the recording rules that they read, directly or by others.

    NOTE: without the groups' own intervals, so that a test over days can be evaluated in steps of minutes.
    """
    groups = rules_file()["groups"]
    texts = {rule["record"]: rule["expr"] for group in groups for rule in group["rules"] if "record" in rule}
    wanted = {rule["expr"] for group in groups for rule in group["rules"] if rule.get("alert") == alert}
    needed: set[str] = set()
    while wanted:
        names = metric_names(wanted.pop()) & texts.keys() - needed
        needed |= names
        wanted |= {texts[name] for name in names}
    kept = []
    for group in groups:
        rules = [rule for rule in group["rules"] if rule.get("alert") == alert or rule.get("record") in needed]
        if rules:
            kept.append({"name": group["name"], "rules": rules})
    return {"groups": kept}
