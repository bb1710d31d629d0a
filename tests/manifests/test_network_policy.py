"""Who reaches the pods and whom they reach, by the rules of a NetworkPolicy: what no rule allows is refused."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

import pytest

from autoscaling.kserve_rules import pod_labels, service_ports
from tests.manifests.kustomize import build, one

OWN = "default"
"""The namespace of the policy."""
NAMESPACE = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Peer:
    """The other end: a pod of a namespace with these labels, or an address."""

    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    address: str = ""


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    for expression in selector.get("matchExpressions", []):
        value = labels.get(expression["key"])
        operator = expression["operator"]
        assert operator in {"In", "DoesNotExist"}
        if (value is not None) if operator == "DoesNotExist" else (value not in expression["values"]):
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_peer(entry: dict[str, Any], peer: Peer) -> bool:
    if "ipBlock" in entry:
        if not peer.address:
            return False
        address = ipaddress.ip_address(peer.address)
        block = entry["ipBlock"]
        within = address in ipaddress.ip_network(block["cidr"])
        return within and not any(address in ipaddress.ip_network(cidr) for cidr in block.get("except", []))
    if peer.address:
        return False
    if "namespaceSelector" in entry:
        if not matches(entry["namespaceSelector"], {NAMESPACE: peer.namespace}):
            return False
    elif peer.namespace != OWN:
        return False
    return matches(entry.get("podSelector", {}), peer.labels)


def allows(direction: str, peer: Peer, port: int, protocol: str = "TCP") -> bool:
    spec = one(build("manifests/kserve/overlays/network-policy"), "NetworkPolicy")["spec"]
    assert direction.capitalize() in spec["policyTypes"]
    side = "from" if direction == "ingress" else "to"
    return any(
        any(is_peer(entry, peer) for entry in rule[side]) and {"port": port, "protocol": protocol} in rule["ports"]
        for rule in spec[direction]
    )


PICKER = one(build("manifests/kserve/overlays/inferencepool"), "Deployment")["spec"]["template"]["metadata"]["labels"]
GATEWAY = Peer("envoy-gateway-system", {"app.kubernetes.io/name": "envoy"})
INTERCEPTOR = Peer("keda", {"app.kubernetes.io/component": "interceptor"})
PROMETHEUS = Peer("monitoring", {"app.kubernetes.io/name": "prometheus"})
DNS = Peer("kube-system", {"k8s-app": "kube-dns"})


@pytest.mark.parametrize(
    ("peer", "ports"),
    [
        (GATEWAY, {8080, 8081}),
        (INTERCEPTOR, {8080, 8081}),
        (Peer(OWN, {"pagedserve.io/client": "true"}), {8080, 8081}),
        (PROMETHEUS, {8080}),
        (Peer(OWN, PICKER), {8080}),
        (Peer(OWN, {"app": "other"}), set()),
        (Peer("stranger", {"pagedserve.io/client": "true"}), set()),
        (Peer("stranger", PICKER), set()),
        (Peer(address="198.51.100.7"), set()),
    ],
)
def test_callers(peer: Peer, ports: set[int]) -> None:
    assert {port for port in (22, 80, 8080, 8081, 8090, 9090) if allows("ingress", peer, port)} == ports


def test_the_ports_are_those_of_the_servers() -> None:
    made = service_ports(one(build("manifests/kserve/base"), "InferenceService"))
    assert {port["targetPort"] for port in made} == {8080, 8081}


@pytest.mark.parametrize("peer", [DNS, Peer(address="169.254.20.10")], ids=["cluster", "node"])
def test_names_are_resolved(peer: Peer) -> None:
    assert allows("egress", peer, 53, "UDP")
    assert allows("egress", peer, 53, "TCP")
    assert not allows("egress", peer, 443)


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("198.51.100.7", True),
        ("2001:db8::1", True),
        ("169.254.169.254", False),
        ("fd00:ec2::254", False),
        ("fe80::1", False),
    ],
)
def test_weights_are_downloaded_and_no_metadata_service_is_asked(address: str, allowed: bool) -> None:
    assert allows("egress", Peer(address=address), 443) == allowed
    assert not allows("egress", Peer(address=address), 80)
    assert not allows("egress", Peer(address=address), 53, "UDP")


def test_traces_go_to_the_collector() -> None:
    documents = build("manifests/kserve/overlays/tracing")
    labels = one(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    (port,) = [port for port in one(documents, "Service")["spec"]["ports"] if port["name"] == "otlp-grpc"]
    assert allows("egress", Peer(OWN, labels), port["port"])
    assert not allows("egress", Peer(OWN, labels), 443)
    assert not allows("egress", Peer("stranger", labels), port["port"])


def test_strangers_are_not_called() -> None:
    for port in (53, 443, 8080):
        assert not allows("egress", Peer("stranger", {"k8s-app": "kube-dns"}), port)
        assert not allows("egress", Peer(OWN, {"k8s-app": "kube-dns"}), port)


def test_it_is_for_the_servers_and_not_for_knatives_pods() -> None:
    selector = one(build("manifests/kserve/overlays/network-policy"), "NetworkPolicy")["spec"]["podSelector"]
    labels = pod_labels(one(build("manifests/kserve/base"), "InferenceService"))
    assert matches(selector, labels)
    assert not matches(selector, {**labels, "serving.knative.dev/revision": "llm-predictor-00001"})
    assert not matches(selector, {})
