"""The two roles: the deployer may apply the overlays, the viewer looks, and neither asks for Secrets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.manifests.kustomize import MANIFESTS, build, one, parse
from tests.manifests.overlays import OVERLAYS

RBAC = "manifests/kserve/overlays/rbac"
APPLY = {"get", "create", "patch"}
LOOK = {"get", "list", "watch"}
THE_PLATFORMS = {
    RBAC,
    "manifests/kserve/overlays/logging",
    "manifests/keda/prometheus-adapter",
}
"""Overlays that a cluster has once, or that give rights."""
THE_PLATFORMS_KINDS = {"ClusterServingRuntime", "Role", "RoleBinding"}
"""Kinds in other overlays that the deployer does not apply."""


def rules(name: str) -> list[dict[str, Any]]:
    found = one(build(RBAC), "Role", name)["rules"]
    assert isinstance(found, list)
    return found


def verbs(name: str, group: str, resource: str) -> set[str]:
    return {
        verb
        for rule in rules(name)
        if group in rule["apiGroups"] and resource in rule["resources"]
        for verb in rule["verbs"]
    }


def plural(kind: str) -> str:
    word = kind.lower()
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def applied() -> set[tuple[str, str]]:
    """Group and kind of what the deployer applies."""
    documents = [document for path in OVERLAYS if path not in THE_PLATFORMS for document in build(path)]
    documents += parse((MANIFESTS / "kserve/overlays/httproute/envoy-gateway-timeout.yaml").read_text())
    found = {(d["apiVersion"].rpartition("/")[0], d["kind"]) for d in documents}
    return {(group, kind) for group, kind in found if kind not in THE_PLATFORMS_KINDS}


@pytest.mark.parametrize(("group", "kind"), sorted(applied()))
def test_the_deployer_may_apply(group: str, kind: str) -> None:
    assert verbs("llm-deployer", group, plural(kind)) >= APPLY | LOOK | {"update", "delete"}


def test_the_deployer_gives_no_rights() -> None:
    assert not {"rbac.authorization.k8s.io", "*"} & {
        group for rule in rules("llm-deployer") for group in rule["apiGroups"]
    }


def test_the_viewer_only_looks() -> None:
    for rule in rules("llm-viewer"):
        assert set(rule["verbs"]) <= LOOK
    for resource in ("pods", "pods/log", "events"):
        assert verbs("llm-viewer", "", resource) == {"get", "list", "watch"}


@pytest.mark.parametrize("name", ["llm-deployer", "llm-viewer"])
def test_neither_reads_secrets_nor_enters_a_pod(name: str) -> None:
    for rule in rules(name):
        for part in ("apiGroups", "resources", "verbs"):
            assert "*" not in rule[part]
        assert not set(rule["resources"]) & {"secrets", "pods/exec", "pods/attach", "pods/portforward"}
        assert not set(rule["verbs"]) & {"bind", "escalate", "impersonate"}


@pytest.mark.parametrize(("binding", "role"), [("llm-deployers", "llm-deployer"), ("llm-viewers", "llm-viewer")])
def test_each_group_has_its_role(binding: str, role: str) -> None:
    document = one(build(RBAC), "RoleBinding", binding)
    assert document["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role}
    assert document["subjects"] == [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": binding}]
