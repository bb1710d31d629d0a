"""The endpoint picker: its configuration, and that it is pointed at metrics which the server really has."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from autoscaling.kserve_rules import service_ports
from engine.metrics import EngineMetrics
from tests.manifests.kustomize import build, one
from tests.manifests.own_schemas import ENDPOINT_PICKER_CONFIG

POOL = "manifests/kserve/overlays/inferencepool"


def configuration() -> dict[str, Any]:
    loaded = yaml.safe_load(one(build(POOL), "ConfigMap")["data"]["epp.yaml"])
    assert isinstance(loaded, dict)
    return loaded


def test_configuration_holds_to_the_schema() -> None:
    jsonschema.validate(configuration(), ENDPOINT_PICKER_CONFIG)


def test_an_unknown_field_is_refused() -> None:
    broken = configuration()
    extractor = next(p for p in broken["plugins"] if p["type"] == "core-metrics-extractor")
    extractor["parameters"]["enginConfigs"] = extractor["parameters"].pop("engineConfigs")
    with pytest.raises(jsonschema.ValidationError, match="enginConfigs"):
        jsonschema.validate(broken, ENDPOINT_PICKER_CONFIG)


def test_every_plugin_that_is_referred_to_is_there() -> None:
    config = configuration()
    names = [plugin.get("name", plugin["type"]) for plugin in config["plugins"]]
    assert len(names) == len(set(names))
    references = re.findall(r"'pluginRef': '([^']+)'", str(config))
    assert len(references) == 6
    assert set(references) == set(names)


def test_metrics_are_gauges_with_one_series_in_the_live_page() -> None:
    registry = CollectorRegistry()
    EngineMetrics("llm", registry)
    page = generate_latest(registry).decode()
    extractor = next(p for p in configuration()["plugins"] if p["type"] == "core-metrics-extractor")["parameters"]
    (engine,) = extractor["engineConfigs"]
    assert engine.pop("name") == extractor["defaultEngine"]
    assert engine.keys() == {"queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"}
    for name in engine.values():
        assert f"# TYPE {name} gauge" in page
        # The picker reads the first series of a name and adds nothing together.
        assert len(re.findall(rf"^{name}(?:{{| )", page, re.MULTILINE)) == 1


def test_pool_picker_and_route_belong_together() -> None:
    documents = build(POOL)
    pool = one(documents, "InferencePool")
    service = one(documents, "Service")
    picker = pool["spec"]["endpointPickerRef"]
    assert picker["name"] == service["metadata"]["name"]
    assert picker["port"]["number"] in {port["port"] for port in service["spec"]["ports"]}
    deployment = one(documents, "Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= deployment["metadata"]["labels"].items()
    assert f"--pool-name={pool['metadata']['name']}" in deployment["spec"]["containers"][0]["args"]
    base = service_ports(one(build("manifests/kserve/base"), "InferenceService"))
    assert pool["spec"]["targetPorts"] == [{"number": base[0]["targetPort"]}]
    (rule,) = one(documents, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == pool["metadata"]["name"]
    assert rule["backendRefs"][0]["port"] == base[0]["targetPort"]


def test_the_picker_speaks_tls_and_its_service_does_not_deny_it() -> None:
    documents = build(POOL)
    arguments = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--secure-serving=true" in arguments
    (port,) = one(documents, "Service")["spec"]["ports"]
    assert port["appProtocol"] == "http2"


def test_the_picker_may_read_what_it_watches() -> None:
    documents = build(POOL)
    role = one(documents, "Role")
    granted = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    look = {"get", "list", "watch"}
    assert granted == {
        ("", "pods"): look,
        ("inference.networking.k8s.io", "inferencepools"): look,
        ("inference.networking.x-k8s.io", "inferenceobjectives"): look,
        ("inference.networking.x-k8s.io", "inferencemodelrewrites"): look,
    }
    binding = one(documents, "RoleBinding")
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    account = one(documents, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    (subject,) = binding["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", account)
    assert account == one(documents, "ServiceAccount")["metadata"]["name"]
