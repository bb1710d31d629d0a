"""Every overlay builds and every document of it is one that the API server takes."""

from __future__ import annotations

import pytest

from tests.manifests.kustomize import MANIFESTS, build
from tests.manifests.overlays import OVERLAYS
from tests.manifests.schemas import validate


def test_every_kustomization_is_found() -> None:
    assert len(OVERLAYS) == len(set(OVERLAYS))
    assert sum(1 for _ in MANIFESTS.rglob("kustomization.yaml")) >= len(OVERLAYS) > 0
    # NOTE: kubectl accepts other names too; one name keeps the list above complete.
    assert not [*MANIFESTS.rglob("kustomization.yml"), *MANIFESTS.rglob("Kustomization")]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_builds_and_validates(overlay: str) -> None:
    documents = build(overlay)
    assert documents
    for document in documents:
        validate(document)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_document_stands_twice(overlay: str) -> None:
    names = [
        (d["apiVersion"], d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in build(overlay)
    ]
    assert len(names) == len(set(names))
