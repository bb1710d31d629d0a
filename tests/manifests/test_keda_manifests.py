"""KEDA's and the HPA's admission rules, and ours, on every overlay; and numbers that have to agree with each other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from autoscaling.adapter import adapter_query, metric_name
from autoscaling.hpa_rules import hpa_problems
from autoscaling.keda_rules import keda_problems
from autoscaling.kserve_rules import service_ports
from autoscaling.promql import Series, selectors, series
from autoscaling.signal_rules import signal_problems
from tests.manifests.keda import BASE, HPAS, OVERLAY, SCALED_OBJECTS, scaled_object, spec
from tests.manifests.kustomize import REPOSITORY, build, of_kind, one
from tests.manifests.overlays import OVERLAYS
from tests.manifests.schemas import CRDS

ISVC = "manifests/kserve/base"
FLOW_CONTROL = "manifests/kserve/overlays/inferencepool-flow-control"
THRESHOLDS = {"requests": 48.0, "kv_usage": 80.0}


def scalers() -> dict[str, Any] | None:
    """KEDA's own schema of triggers, where it is at hand."""
    file = CRDS / "keda-scalers-schema.json"
    return json.loads(file.read_text()) if file.is_file() else None


def adapter_rules(kind: str) -> dict[str, dict[str, Any]]:
    """prometheus-adapter's rules by the name of the metric. kind: externalRules or rules."""
    return {metric_name(rule): rule for rule in adapter_config()[kind]}


def adapter_config() -> dict[str, list[dict[str, Any]]]:
    """Every rule of prometheus-adapter, those for one metric too."""
    config = one(build("manifests/keda/prometheus-adapter"), "ConfigMap")["data"]["config.yaml"]
    loaded = yaml.safe_load(config)
    assert isinstance(loaded, dict)
    return loaded


def picker_config(path: str) -> dict[str, Any]:
    """The endpoint picker's configuration."""
    loaded = yaml.safe_load(one(build(path), "ConfigMap")["data"]["epp.yaml"])
    assert isinstance(loaded, dict)
    return loaded


def drain_seconds() -> int:
    """What the InferenceService gives to the streams of a pod that leaves."""
    (container,) = one(build(ISVC), "InferenceService")["spec"]["predictor"]["containers"]
    (flag,) = [argument for argument in container["args"] if argument.startswith("--drain_timeout=")]
    return int(flag.partition("=")[2])


SHARED_HOSTS = {"llm.example.com": {"llm-interceptor", "llm-models"}}
"""Hosts that two routes claim, of which docs/autoscaling.md says so: one of the two, or another host for one."""


def test_every_variant_is_found() -> None:
    assert len(SCALED_OBJECTS) >= 8
    assert len(HPAS) == 2


@pytest.mark.parametrize("path", SCALED_OBJECTS)
def test_KEDA_takes_every_scaled_object(path: str) -> None:
    documents = build(path)
    document = scaled_object(path)
    # NOTE: another namespace has another InferenceService.
    beside = documents if document["metadata"].get("namespace") else [*documents, *build(ISVC)]
    assert keda_problems(document, [d for d in beside if d is not document], scalers()) == []


@pytest.mark.parametrize("path", SCALED_OBJECTS)
def test_signals_of_every_scaled_object(path: str) -> None:
    assert signal_problems(scaled_object(path)) == []


@pytest.mark.parametrize("path", HPAS)
def test_the_API_server_takes_every_hpa(path: str) -> None:
    assert hpa_problems(one(build(path), "HorizontalPodAutoscaler")) == []


def test_kserves_own_keda_class_stands_alone() -> None:
    documents = build(f"{OVERLAY}kserve-keda")
    document = one(documents, "InferenceService")
    assert document["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "keda"
    assert not of_kind(documents, "ScaledObject")
    # Beside it the base would be refused, or fight it.
    assert "must be 'external'" in "\n".join(keda_problems(scaled_object(BASE), documents))
    metrics = [m["external"] for m in document["spec"]["predictor"]["autoScaling"]["metrics"]]
    assert [m["metric"]["query"] for m in metrics] == [
        t["metadata"]["query"] for t in scaled_object(BASE)["spec"]["triggers"]
    ]
    assert [float(m["target"]["averageValue"]) for m in metrics] == list(THRESHOLDS.values())


# --- numbers that stand in several places ---


@pytest.mark.parametrize("path", SCALED_OBJECTS)
def test_thresholds_are_the_bases(path: str) -> None:
    targets = {t.name: t.target for t in spec(path).triggers}
    assert THRESHOLDS.items() <= targets.items()
    assert targets.get("in_flight", THRESHOLDS["requests"]) == THRESHOLDS["requests"]
    assert targets.get("gateway_queue", THRESHOLDS["requests"]) == THRESHOLDS["requests"]


def test_the_formula_is_at_its_target_where_a_trigger_is() -> None:
    modifiers = spec(f"{OVERLAY}scaling-modifiers").modifiers
    assert modifiers is not None
    assert modifiers.target_is_whole
    idle = {"requests": 0.0, "kv_usage": 0.0, "ready": 3.0}
    for name, threshold in THRESHOLDS.items():
        assert modifiers.formula.evaluate({**idle, name: 3 * threshold}) == 3 * modifiers.target
    assert modifiers.formula.evaluate({**idle, "requests": 1e6}) == 2 * 3 * modifiers.target
    assert modifiers.formula.evaluate({**idle, "requests": 1e6, "ready": 0.0}) == 4 * modifiers.target


def test_the_hpa_is_the_base_without_keda() -> None:
    hpa = one(build(f"{OVERLAY}hpa"), "HorizontalPodAutoscaler")["spec"]
    base = scaled_object(BASE)["spec"]
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (base["minReplicaCount"], base["maxReplicaCount"])
    assert hpa["behavior"] == base["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    rules = adapter_rules("externalRules")
    for metric, trigger in zip(hpa["metrics"], base["triggers"], strict=True):
        external = metric["external"]
        assert float(external["target"]["averageValue"]) == float(trigger["metadata"]["threshold"])
        matchers = {"namespace": "default", **external["metric"]["selector"]["matchLabels"]}
        assert adapter_query(rules[external["metric"]["name"]], matchers) == trigger["metadata"]["query"]


def test_the_adapters_rules_give_one_sample_a_metric_or_a_pod() -> None:
    for rule in adapter_rules("externalRules").values():
        assert series(adapter_query(rule, {"namespace": "a"})) is Series.ONE
    (metric,) = one(build(f"{OVERLAY}hpa-dcgm"), "HorizontalPodAutoscaler")["spec"]["metrics"]
    found = [rule for rule in adapter_config()["rules"] if metric_name(rule) == metric["pods"]["metric"]["name"]]
    # The exporter's name of up to 4.8 and that of 4.9: whichever is found, the query asks for both.
    assert [rule["seriesQuery"].partition("{")[0] for rule in found] == [
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_GPU_UTIL_RATIO",
    ]
    for rule in found:
        # Scraped with honorLabels: false, as dcgm-exporter's chart does, `pod` is the exporter's own.
        labels = {of["resource"]: label for label, of in rule["resources"]["overrides"].items()}
        assert labels == {"namespace": "exported_namespace", "pod": "exported_pod"}
        query = adapter_query(rule, {labels["namespace"]: "a", labels["pod"]: "b"}, group_by=labels["pod"])
        assert query.startswith("avg by (exported_pod)")
        workload = {"exported_namespace": "a", "exported_pod": "b"}
        assert [selector.matchers for selector in selectors(query)] == [workload, workload]
        for label in labels.values():
            assert f'{label}!=""' in rule["seriesQuery"]


@pytest.mark.parametrize("path", SCALED_OBJECTS)
def test_scale_in_outlasts_streams_and_scale_out_the_load(path: str) -> None:
    made = spec(path)
    assert made.behavior.down.window_seconds > drain_seconds()
    # Between 1 and 2 replicas the API server's defaults would let four pods come every 15 s.
    if made.modifiers is None:
        assert min(policy.period_seconds for policy in made.behavior.up.policies) >= 180
    assert made.fallback is not None
    assert made.fallback.replicas >= made.min_replicas
    assert made.fallback.behavior == "currentReplicasIfHigher"


@pytest.mark.parametrize("path", SCALED_OBJECTS)
def test_a_mean_over_time_spans_two_scrapes(path: str) -> None:
    (monitor,) = of_kind(build("manifests/monitoring/base"), "PodMonitor")
    intervals = {e.get("interval", "60s") for e in monitor["spec"]["podMetricsEndpoints"]}
    for trigger in scaled_object(path)["spec"]["triggers"]:
        for minutes in re.findall(r"\[(\d+)m\]", trigger["metadata"].get("query", "")):
            assert all(int(minutes) * 60 >= 2 * int(interval.removesuffix("s")) for interval in intervals)


@pytest.mark.parametrize(("component", "scheme"), [("prometheus-bearer", "bearer"), ("prometheus-tls", "tls")])
def test_credentials_go_over_tls_with_every_trigger(component: str, scheme: str) -> None:
    for trigger in scaled_object(OVERLAY + component)["spec"]["triggers"]:
        assert trigger["metadata"]["serverAddress"].startswith("https://")
        assert trigger["metadata"]["authModes"] == scheme
        assert "unsafeSsl" not in trigger["metadata"]
    assert not of_kind(build(OVERLAY + component), "Secret")


def test_requests_pass_the_interceptor_and_reach_the_predictor() -> None:
    documents = build(f"{OVERLAY}scale-to-zero")
    route, interceptor = one(documents, "HTTPRoute")["spec"], one(documents, "InterceptorRoute")["spec"]
    hosts = [host for rule in interceptor["rules"] for host in rule["hosts"]]
    assert route["hostnames"] == hosts
    assert {b["name"] for rule in route["rules"] for b in rule["backendRefs"]} == {
        "keda-add-ons-http-interceptor-proxy"
    }
    assert (
        interceptor["target"]["service"] == scaled_object(f"{OVERLAY}scale-to-zero")["spec"]["scaleTargetRef"]["name"]
    )
    # The ports: the interceptor's proxy, its external scaler, and the Service that KServe makes (its REST port).
    assert {b["port"] for rule in route["rules"] for b in rule["backendRefs"]} == {8080}
    triggers = {t["name"]: t["metadata"] for t in scaled_object(f"{OVERLAY}scale-to-zero")["spec"]["triggers"]}
    assert triggers["in_flight"]["scalerAddress"] == "keda-add-ons-http-external-scaler.keda:9090"
    rest = service_ports(one(build(ISVC), "InferenceService"))[0]
    assert interceptor["target"]["port"] == rest["port"]
    # Held as long as the picker of the other overlay holds them: several loads.
    assert interceptor["timeouts"]["readiness"] == picker_config(FLOW_CONTROL)["flowControl"]["defaultRequestTTL"]
    assert int(interceptor["timeouts"]["readiness"].removesuffix("s")) >= 3 * 180
    # Nothing on the way cuts a stream.
    assert interceptor["timeouts"]["request"] == route["rules"][0]["timeouts"]["request"] == "0s"


def test_the_gateway_overlay_is_woken_by_the_picker_of_the_bundle() -> None:
    documents = [*build(f"{OVERLAY}scale-to-zero-gateway"), *build(FLOW_CONTROL)]
    picker, pool = one(documents, "Deployment"), one(documents, "InferencePool")
    (container,) = picker["spec"]["template"]["spec"]["containers"]
    config = picker_config(FLOW_CONTROL)
    # The picker holds what comes at 0, for several loads.
    assert config.pop("featureGates") == ["flowControl"]
    ttl = config.pop("flowControl")["defaultRequestTTL"]
    assert int(ttl.removesuffix("s")) >= 3 * 180
    # It lets Prometheus read how much that is, and Prometheus finds it.
    assert "--metrics-endpoint-auth=false" in container["args"]
    monitor = one(documents, "PodMonitor")["spec"]
    labels = picker["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    (relabeling,) = endpoint["relabelings"]
    assert relabeling["sourceLabels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_name"]
    found = re.fullmatch(relabeling["regex"], labels["app.kubernetes.io/name"])
    assert found is not None
    # The query asks for the series as the picker names them, and for its scrape as the monitor labels it.
    (trigger,) = [t for t in one(documents, "ScaledObject")["spec"]["triggers"] if t["name"] == "gateway_queue"]
    queue, scrape = selectors(trigger["metadata"]["query"])
    assert (queue.metric, scrape.metric) == ("inference_extension_flow_control_queue_size", "up")
    assert queue.matchers == {"namespace": "default", "inference_pool": pool["metadata"]["name"]}
    assert scrape.matchers == {"namespace": "default", relabeling["targetLabel"]: found[1]}
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    # All the rest is the picker without flow control.
    assert config == picker_config("manifests/kserve/overlays/inferencepool")


@pytest.mark.parametrize("path", SCALED_OBJECTS)
def test_prometheus_is_where_it_is_in_the_bundle(path: str) -> None:
    tls = {t["metadata"].get("authModes") for t in scaled_object(path)["spec"]["triggers"]} & {"bearer", "tls"}
    address = "https://prometheus.monitoring.svc:9091" if tls else "http://prometheus-operated.monitoring.svc:9090"
    triggers = [t for t in scaled_object(path)["spec"]["triggers"] if t["type"] == "prometheus"]
    assert {t["metadata"]["serverAddress"] for t in triggers} == {address}


def test_no_two_routes_claim_a_host() -> None:
    claims: dict[str, set[str]] = {}
    for path in OVERLAYS:
        for document in build(path):
            for host in document["spec"].get("hostnames", []) if document["kind"] in {"HTTPRoute", "GRPCRoute"} else []:
                claims.setdefault(host, set()).add(document["metadata"]["name"])
    assert {host: names for host, names in claims.items() if len(names) > 1} == SHARED_HOSTS
    guide = (REPOSITORY / "docs" / "autoscaling.md").read_text()
    assert all(f"`{host}`" in guide for host in SHARED_HOSTS)


def test_the_guide_names_every_overlay_and_the_numbers_in_force() -> None:
    guide = (REPOSITORY / "docs" / "autoscaling.md").read_text()
    for folder in (REPOSITORY / "manifests" / "keda" / "overlays").iterdir():
        assert f"`{folder.name}`" in guide
    assert f"64 / 1.1 / 1.2 = {THRESHOLDS['requests']:.0f}" in guide
    assert int(64 / 1.1 / 1.2) == THRESHOLDS["requests"]
    assert f"`--drain_timeout` ({drain_seconds()} s)" in guide
    assert f"{spec(BASE).behavior.down.window_seconds} s" in guide
