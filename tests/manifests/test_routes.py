"""Several models behind one host: where requests go, by the matching rules of Gateway API, and what is there."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaling.kserve_rules import service_ports
from tests.manifests.kustomize import MANIFESTS, Document, build, of_kind, one, parse
from tests.manifests.overlays import OVERLAYS
from tests.manifests.schemas import validate

ROUTES = "manifests/kserve/overlays/httproute"


def route(document: Document, path: str, headers: dict[str, str]) -> tuple[str, int, str] | None:
    """Service, port and path that a request is sent to; None where no rule fits (404).

    A path prefix matches whole elements; the longest one wins, then the most headers (HTTPRouteRule's precedence).
    """
    found = []
    for rule in document["spec"]["rules"]:
        for match in rule["matches"]:
            assert match["path"]["type"] == "PathPrefix"
            prefix = match["path"]["value"].rstrip("/")
            wanted = {header["name"]: header["value"] for header in match.get("headers", [])}
            if (path == prefix or path.startswith(prefix + "/")) and wanted.items() <= headers.items():
                found.append((len(prefix), len(wanted), prefix, rule))
    if not found:
        return None
    _, _, prefix, rule = max(found, key=lambda entry: entry[:2])
    for rule_filter in rule.get("filters", []):
        replacement = rule_filter["urlRewrite"]["path"]
        assert replacement["type"] == "ReplacePrefixMatch"
        path = replacement["replacePrefixMatch"].rstrip("/") + path[len(prefix) :] or "/"
    (backend,) = rule["backendRefs"]
    return backend["name"], backend["port"], path


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/api/qwen/v1/chat/completions", {}, ("qwen-predictor", 80, "/v1/chat/completions")),
        ("/api/codellama/v2/models/codellama/infer", {}, ("codellama-predictor", 80, "/v2/models/codellama/infer")),
        ("/api/qwen", {}, ("qwen-predictor", 80, "/")),
        ("/api/qwen2/v1/models", {}, None),
        ("/v1/chat/completions", {"x-model": "qwen"}, ("qwen-predictor", 80, "/v1/chat/completions")),
        ("/v1/models", {"x-model": "codellama"}, ("codellama-predictor", 80, "/v1/models")),
        ("/v1/models", {}, None),
        ("/v1/models", {"x-model": "gpt"}, None),
        ("/api/qwen/v1/models", {"x-model": "codellama"}, ("qwen-predictor", 80, "/v1/models")),
    ],
)
def test_rest_goes_to(path: str, headers: dict[str, str], expected: tuple[str, int, str] | None) -> None:
    assert route(one(build(ROUTES), "HTTPRoute"), path, headers) == expected


def test_grpc_goes_by_header() -> None:
    rules = one(build(ROUTES), "GRPCRoute")["spec"]["rules"]
    assert {rule["matches"][0]["headers"][0]["value"]: rule["backendRefs"][0]["name"] for rule in rules} == {
        "qwen": "qwen-predictor",
        "codellama": "codellama-predictor",
    }
    for rule in rules:
        assert rule["matches"][0]["method"] == {"service": "inference.GRPCInferenceService"}


def test_rest_and_grpc_share_no_host() -> None:
    documents = build(ROUTES)
    hosts = [set(one(documents, kind)["spec"]["hostnames"]) for kind in ("HTTPRoute", "GRPCRoute")]
    assert not hosts[0] & hosts[1]


def backends(document: Document) -> list[dict[str, Any]]:
    return [backend for rule in document["spec"]["rules"] for backend in rule["backendRefs"]]


def test_every_backend_is_a_port_of_a_service_that_kserve_makes() -> None:
    documents = build(ROUTES)
    ports = {}
    for service in of_kind(documents, "InferenceService"):
        for port in service_ports(service):
            ports[f"{service['metadata']['name']}-predictor", port["port"]] = port
    for backend in backends(one(documents, "HTTPRoute")):
        assert "appProtocol" not in ports[backend["name"], backend["port"]]
    for backend in backends(one(documents, "GRPCRoute")):
        assert ports[backend["name"], backend["port"]]["appProtocol"] == "kubernetes.io/h2c"


@pytest.mark.parametrize("overlay", [path for path in OVERLAYS if path.startswith("manifests/kserve/")])
def test_no_route_cuts_a_stream_before_the_predictor_does(overlay: str) -> None:
    services = of_kind(build(overlay), "InferenceService") or of_kind(
        build("manifests/kserve/base"), "InferenceService"
    )
    longest = max(service["spec"]["predictor"]["timeout"] for service in services)
    for document in of_kind(build(overlay), "HTTPRoute"):
        for rule in document["spec"]["rules"]:
            assert rule["timeouts"] == {"request": f"{longest}s", "backendRequest": f"{longest}s"}


def test_envoy_gateway_cuts_no_grpc_stream_before_the_predictor_does() -> None:
    (policy,) = parse((MANIFESTS / "kserve/overlays/httproute/envoy-gateway-timeout.yaml").read_text())
    validate(policy)
    routes = [("GRPCRoute", document["metadata"]["name"]) for document in of_kind(build(ROUTES), "GRPCRoute")]
    assert [(target["kind"], target["name"]) for target in policy["spec"]["targetRefs"]] == routes
    longest = max(service["spec"]["predictor"]["timeout"] for service in of_kind(build(ROUTES), "InferenceService"))
    assert policy["spec"]["timeout"] == {"http": {"requestTimeout": f"{longest}s"}}


def test_the_models_differ_in_name_and_weights() -> None:
    services = of_kind(build(ROUTES), "InferenceService")
    assert len({str(service["spec"]["predictor"]["storageUris"]) for service in services}) == 2
    for service in services:
        name = service["metadata"]["name"]
        assert f"--model_name={name}" in service["spec"]["predictor"]["containers"][0]["args"]
