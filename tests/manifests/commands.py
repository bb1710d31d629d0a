"""kubectl commands that a page tells people to type: checked as far as that goes without a cluster."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

from tests.manifests.kustomize import MANIFESTS, REPOSITORY, build
from tests.manifests.schemas import validate

VERBS = frozenset(
    {
        "annotate",
        "apply",
        "auth",
        "create",
        "delete",
        "describe",
        "diff",
        "events",
        "exec",
        "get",
        "kustomize",
        "label",
        "logs",
        "patch",
    }
    | {"port-forward", "rollout", "scale", "set", "top", "wait", "cordon", "drain"}
)
RESOURCES = frozenset(
    {
        "clusterservingruntime",
        "clusterstoragecontainer",
        "configmap",
        "daemonset",
        "deployment",
        "endpointslice",
        "event",
        "horizontalpodautoscaler",
        "hpa",
    }
    | {"httproute", "inferencepool", "inferenceservice", "isvc", "job", "namespace", "networkpolicy", "node", "pdb"}
    | {
        "persistentvolumeclaim",
        "pod",
        "poddisruptionbudget",
        "podmonitor",
        "prometheus",
        "prometheusrule",
        "pvc",
        "replicaset",
    }
    | {"rs", "scaledobject", "secret", "service", "svc", "triggerauthentication"}
)
WITHOUT_RESOURCE = frozenset({"logs", "exec", "events", "cordon", "drain", "kustomize"})
"""Verbs that take the name of a pod, a node or a folder, or none."""


def commands(text: str) -> list[str]:
    """The kubectl commands of a page or a comment, continued lines joined.

    A command stands in a code block, or, in a YAML comment, indented and perhaps after a word and a colon.
    """
    joined = re.sub(r"\\\n(?:#\s*|\s*)", " ", text)
    return re.findall(r"^(?:#\s{2,}(?:[\w ]+: +)?)?(kubectl [^`\n]+)", joined, re.MULTILINE)


def check(command: str) -> None:
    """Every folder that is applied builds and validates, every file named exists, every resource is a known one."""
    for part in re.split(r"\s\|\s|\s&&\s", command):
        words = shlex.split(part, comments=True)
        if words[0] != "kubectl":
            continue
        words = words[1:]
        while words[0] in {"-n", "--namespace", "--context"}:
            words = words[2:]
        assert words[0] in VERBS, command
        for flag, value in pairwise(words):
            # NOTE: a path in capitals or angle brackets is the reader's to fill in.
            if flag in {"-k", "--kustomize", "kustomize"} and re.fullmatch(r"[a-z0-9/_.-]+", value):
                for document in build(value):
                    validate(document)
            if flag == "--patch-file":
                assert (REPOSITORY / value).is_file(), command
        if words[0] not in WITHOUT_RESOURCE and not {"-k", "-f", "--raw"} & set(words):
            named = {kind for word in words[1:] for kind in re.split("[,/.]", word)}
            assert any(kind in RESOURCES or kind.removesuffix("s") in RESOURCES for kind in named), command


def all_pages() -> dict[str, str]:
    """README, docs and the comments of the kustomizations, by path."""
    files = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    files += sorted(MANIFESTS.rglob("kustomization.yaml"))
    return {str(file.relative_to(REPOSITORY)): file.read_text() for file in files}
