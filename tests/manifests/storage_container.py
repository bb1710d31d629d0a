"""The init container that KServe puts into a pod whose weights it fetches."""

from __future__ import annotations

import functools
import subprocess
from typing import Any

import yaml

from tests.manifests.kustomize import MANIFESTS, Document, kubectl, parse

PATCH = MANIFESTS / "kserve" / "storage-container.yaml"

DEFAULT: Document = {
    "apiVersion": "serving.kserve.io/v1alpha1",
    "kind": "ClusterStorageContainer",
    "metadata": {"name": "default"},
    "spec": {
        "container": {
            "name": "storage-initializer",
            "image": "kserve/storage-initializer:v0.20.0",
            "resources": {
                "requests": {"cpu": "100m", "memory": "100Mi"},
                "limits": {"cpu": "1", "memory": "1Gi"},
            },
        },
        "supportedUriFormats": [{"prefix": "hf://"}, {"prefix": "s3://"}],
        "supportsMultiModelDownload": True,
        "workloadType": "initContainer",
    },
}
"""As KServe's kustomizations install it, with the addresses that our overlays use."""


@functools.cache
def patched() -> Document:
    """The cluster's storage container after the documented command."""
    command = [kubectl(), "patch", "--local", "-f", "-", "--type=merge", "--patch-file", str(PATCH), "-o", "yaml"]
    done = subprocess.run(
        command, input=yaml.safe_dump(DEFAULT), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (document,) = parse(done.stdout)
    return document


def injected(pod: dict[str, Any], storage: Document) -> dict[str, Any]:
    """The pod with the init container that KServe adds; a claim (pvc://) is mounted and needs none."""
    addresses = [entry["uri"] for entry in pod.get("storageUris", [])]
    addresses += [pod["model"]["storageUri"]] if "storageUri" in pod.get("model", {}) else []
    if all(address.startswith("pvc://") for address in addresses):
        return pod
    return {**pod, "initContainers": [*pod.get("initContainers", []), storage["spec"]["container"]]}


def qos_class(pod: dict[str, Any]) -> str:
    """The class by which Kubernetes evicts: init containers count as the others do."""
    resources = [c.get("resources", {}) for c in [*pod.get("initContainers", []), *pod["containers"]]]
    if not any(r.get("requests") or r.get("limits") for r in resources):
        return "BestEffort"
    for r in resources:
        limits = {name: r.get("limits", {}).get(name) for name in ("cpu", "memory")}
        # NOTE: without a request the limit stands for it.
        requests = {name: r.get("requests", {}).get(name, limits[name]) for name in limits}
        if None in limits.values() or requests != limits:
            return "Burstable"
    return "Guaranteed"
