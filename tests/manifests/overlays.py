"""Every kustomization that can be applied: bases and overlays of manifests/, not the components they share."""

from __future__ import annotations

import yaml

from tests.manifests.kustomize import MANIFESTS, REPOSITORY


def _applicable() -> list[str]:
    found = []
    for file in sorted(MANIFESTS.rglob("kustomization.yaml")):
        kustomization = yaml.safe_load(file.read_text())
        # NOTE: what is local configuration (a transformer that others name) is no resource of the cluster.
        annotations = kustomization.get("metadata", {}).get("annotations", {})
        local = annotations.get("config.kubernetes.io/local-config") == "true"
        if kustomization.get("kind", "Kustomization") == "Kustomization" and not local:
            found.append(file.parent.relative_to(REPOSITORY).as_posix())
    return found


OVERLAYS = _applicable()
"""Paths relative to the repository, such as manifests/kserve/overlays/cpu-demo."""
