"""Every kustomization that can be applied: bases and overlays of manifests/, not the components they share."""

from __future__ import annotations

import yaml

from tests.manifests.kustomize import MANIFESTS, REPOSITORY


def _applicable() -> list[str]:
    found = []
    for file in sorted(MANIFESTS.rglob("kustomization.yaml")):
        kind = yaml.safe_load(file.read_text()).get("kind", "Kustomization")
        if kind == "Kustomization":
            found.append(file.parent.relative_to(REPOSITORY).as_posix())
    return found


OVERLAYS = _applicable()
"""Paths relative to the repository, such as manifests/kserve/overlays/cpu-demo."""
