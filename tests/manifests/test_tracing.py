"""From the predictor's flag to Jaeger: names, ports and sections that must fit each other."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.manifests.kustomize import build, one
from tests.manifests.pods import SERVER_PODS, ServerPod

TRACING = "manifests/kserve/overlays/tracing"
KEYS: dict[tuple[str, str], set[str]] = {
    ("receivers", "otlp"): {"protocols"},
    ("processors", "memory_limiter"): {"check_interval", "limit_mib", "spike_limit_mib"},
    ("processors", "batch"): {"timeout", "send_batch_size"},
    ("exporters", "otlp_grpc"): {"endpoint", "tls", "sending_queue", "retry_on_failure"},
    ("extensions", "health_check"): {"endpoint"},
}
"""The keys that we use, as the Collector's documentation (0.159) names them: look a new one up and add it."""


def configuration() -> dict[str, Any]:
    loaded = yaml.safe_load(one(build(TRACING), "ConfigMap")["data"]["collector.yaml"])
    assert isinstance(loaded, dict)
    return loaded


def collector() -> dict[str, Any]:
    container = one(build(TRACING), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert isinstance(container, dict)
    return container


@pytest.fixture
def pod() -> ServerPod:
    (found,) = [pod for pod in SERVER_PODS if pod.overlay == TRACING]
    return found


def test_sections_and_keys_are_the_collectors() -> None:
    config = configuration()
    assert config.keys() == {"receivers", "processors", "exporters", "extensions", "service"}
    for section in config.keys() - {"service"}:
        for name, settings in config[section].items():
            assert settings.keys() <= KEYS[section, name.partition("/")[0]], name


def test_what_is_defined_is_used() -> None:
    config = configuration()
    (pipeline,) = config["service"]["pipelines"].values()
    assert config["service"]["pipelines"].keys() == {"traces"}
    for section in ("receivers", "processors", "exporters"):
        assert set(pipeline[section]) == config[section].keys()
    assert config["service"]["extensions"] == list(config["extensions"])
    # Behind a batch it could refuse nothing any more.
    assert pipeline["processors"][0] == "memory_limiter"


def test_the_predictor_reaches_the_collector(pod: ServerPod) -> None:
    service = one(build(TRACING), "Service")
    endpoint = urlsplit(pod.config.otlp_traces_endpoint or "")
    assert endpoint.scheme == "http", "without TLS inside the namespace"
    assert endpoint.hostname == service["metadata"]["name"]
    ports = {port["port"]: port for port in service["spec"]["ports"]}
    target = ports[endpoint.port]["targetPort"]
    containers = {port["name"]: port["containerPort"] for port in collector()["ports"]}
    listening = configuration()["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert listening == f"0.0.0.0:{containers[target]}"
    labels = one(build(TRACING), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_ports_probes_and_memory() -> None:
    config, container = configuration(), collector()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    protocols = config["receivers"]["otlp"]["protocols"]
    assert protocols["http"]["endpoint"] == f"0.0.0.0:{ports['otlp-http']}"
    assert config["extensions"]["health_check"]["endpoint"] == f"0.0.0.0:{ports['health']}"
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == "health"
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Mi"))
    limiter = config["processors"]["memory_limiter"]
    assert limiter["limit_mib"] < limit
    assert limiter["spike_limit_mib"] < limiter["limit_mib"]


def test_the_configuration_is_where_it_is_looked_for() -> None:
    (mount,) = collector()["volumeMounts"]
    assert collector()["args"] == [f"--config={mount['mountPath']}/collector.yaml"]
    assert mount["readOnly"]
    (volume,) = one(build(TRACING), "Deployment")["spec"]["template"]["spec"]["volumes"]
    # A hash in the name: a changed configuration starts new pods.
    assert volume["configMap"]["name"] == one(build(TRACING), "ConfigMap")["metadata"]["name"] != "otel-collector"


def test_the_predictors_variables_are_opentelemetrys(pod: ServerPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by the SDK itself: a tenth of the requests, unless the caller decided; spans name the pod."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    names = [variable["name"] for variable in pod.container["env"]]
    for name, value in pod.environment.items():
        # $(NAME) is filled in by Kubernetes, from what stands before it.
        assert set(re.findall(r"\$\((\w+)\)", value)) <= set(names[: names.index(name)]), name
        if name.startswith("OTEL_"):
            monkeypatch.setenv(name, re.sub(r"\$\((\w+)\)", r"<\1>", value))
    provider = TracerProvider(resource=Resource.create(), shutdown_on_exit=False)
    assert provider.resource.attributes["service.name"] == "llm"
    assert provider.resource.attributes["k8s.pod.name"] == "<POD_NAME>"
    assert provider.resource.attributes["k8s.namespace.name"] == "<POD_NAMESPACE>"
    description = provider.sampler.get_description()
    assert description.startswith("ParentBased{root:TraceIdRatioBased{0.1}")


def test_metrics_and_traces_of_a_pod_have_the_same_names(pod: ServerPod) -> None:
    fields = {v["name"]: v["valueFrom"]["fieldRef"]["fieldPath"] for v in pod.container["env"] if "valueFrom" in v}
    assert fields == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
