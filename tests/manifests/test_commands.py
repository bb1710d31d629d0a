"""Every kubectl command of the README, the docs and the manifests' comments."""

from __future__ import annotations

import re

import pytest

from tests.manifests.commands import all_pages, check, commands
from tests.manifests.kustomize import REPOSITORY

FOUND = [(page, command) for page, text in all_pages().items() for command in commands(text)]


def test_they_are_found() -> None:
    pages = {page for page, _ in FOUND}
    assert "README.md" in pages
    assert "docs/kubernetes.md" in pages
    assert "manifests/kserve/overlays/canary/kustomization.yaml" in pages


@pytest.mark.parametrize(("page", "command"), FOUND, ids=[f"{page}: {command}" for page, command in FOUND])
def test_command(page: str, command: str) -> None:
    check(command)


@pytest.mark.parametrize(
    "command",
    [
        "kubectl apply -k manifests/kserve/overlays/no-such",
        "kubectl aply -k manifests/kserve/base",
        "kubectl patch inferenceservice llm --patch-file no-such.yaml",
        "kubectl get inferencservice llm",
        "kubectl apply -k manifests/kserve/base && kubectl get inferencservice llm",
    ],
)
def test_a_wrong_one_is_noticed(command: str) -> None:
    with pytest.raises(AssertionError):
        check(command)


def test_every_overlay_is_in_the_docs() -> None:
    text = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    overlays = {path.name for path in (REPOSITORY / "manifests" / "kserve" / "overlays").iterdir()}
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == overlays
