"""Every pod passes the restricted Pod Security Standard, and no server needs to write to its image."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.manifests.kustomize import build, one
from tests.manifests.overlays import OVERLAYS
from tests.manifests.pod_security import restricted_faults
from tests.manifests.pods import SERVER_PODS, ServerPod, pods
from tests.manifests.schemas import validate
from tests.manifests.storage_container import DEFAULT, injected, patched, qos_class

PRIVILEGED = {"manifests/kserve/overlays/logging": "reads the nodes' /var/log, in a namespace of its own"}

KERNELS = "/cache/triton"
"""Compiled kernels, where they outlive the pod on a claim."""

GOOD: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {"name": "a", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    ],
    "volumes": [{"name": "v", "emptyDir": {}}],
}


def test_a_good_pod_has_no_fault() -> None:
    assert restricted_faults(GOOD) == []


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("securityContext", "runAsNonRoot"), False, "runAsNonRoot"),
        (("securityContext", "runAsUser"), 0, "runAsUser"),
        (("securityContext", "seccompProfile"), {"type": "Unconfined"}, "seccompProfile"),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True, "allowPrivilegeEscalation"),
        (("containers", 0, "securityContext", "privileged"), True, "privileged"),
        (("containers", 0, "securityContext", "capabilities"), {"drop": ["NET_RAW"]}, "drop ALL"),
        (("containers", 0, "securityContext", "capabilities"), {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, "added"),
        (("containers", 0, "ports"), [{"containerPort": 1, "hostPort": 1}], "hostPort"),
        (("volumes", 0), {"name": "v", "hostPath": {"path": "/"}}, "hostPath"),
        (("hostNetwork",), True, "hostNetwork"),
    ],
)
def test_faults(path: tuple[Any, ...], value: Any, named: str) -> None:
    pod = copy.deepcopy(GOOD)
    place: Any = pod
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert [fault for fault in restricted_faults(pod) if named in fault]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_is_restricted(overlay: str) -> None:
    for document, pod in pods(build(overlay)):
        faults = restricted_faults(injected(pod, patched()))
        assert bool(faults) == (overlay in PRIVILEGED), f"{document['kind']} {document['metadata']['name']}: {faults}"


def test_the_download_container_is_patched_because_the_default_is_refused() -> None:
    validate(patched())
    (_, pod) = pods(build("manifests/kserve/base"))[0]
    assert restricted_faults(injected(pod, DEFAULT)) == [
        "storage-initializer: allowPrivilegeEscalation must be false",
        "storage-initializer: capabilities must drop ALL",
    ]
    assert qos_class(injected(pod, DEFAULT)) == "Burstable"


def test_the_privileged_namespace_says_so() -> None:
    namespace = one(build("manifests/kserve/overlays/logging"), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.mark.parametrize("pod", SERVER_PODS, ids=str)
def test_a_server_writes_to_volumes_only(pod: ServerPod) -> None:
    assert pod.container["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {m["mountPath"] for m in pod.container["volumeMounts"] if not m.get("readOnly")}
    assert writable - {KERNELS} == {"/dev/shm", "/cache", "/tmp"}
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    for mount in pod.container["volumeMounts"]:
        if mount["mountPath"] == KERNELS:
            assert "persistentVolumeClaim" in volumes[mount["name"]]
        elif not mount.get("readOnly"):
            assert "sizeLimit" in volumes[mount["name"]]["emptyDir"]
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    assert pod.spec["automountServiceAccountToken"] is False
    assert pod.spec["enableServiceLinks"] is False
