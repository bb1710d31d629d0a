"""The transformer that writes another namespace and name into a ScaledObject: nothing of the example is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from autoscaling.keda_rules import keda_problems
from autoscaling.promql import selectors
from tests.manifests.keda import BASE, OVERLAY, SCALED_OBJECTS, scaled_object
from tests.manifests.kustomize import REPOSITORY, Document, build, of_kind, one

EXAMPLE = f"{OVERLAY}own-namespace"
TRANSFORMERS = {
    f"{OVERLAY}scale-to-zero": "retarget-interceptor",
    f"{OVERLAY}scale-to-zero-gateway": "retarget-gateway",
}


def retargeted(path: str, folder: Path) -> list[Document]:
    """An overlay for the InferenceService `qwen` in the namespace `chat`, as the example does it."""
    transformer = TRANSFORMERS.get(path, "retarget")
    example = yaml.safe_load((REPOSITORY / EXAMPLE / "kustomization.yaml").read_text())
    kustomization = {
        **example,
        "resources": [os.path.relpath(REPOSITORY / path, folder.resolve())],
        "transformers": [os.path.relpath(REPOSITORY / "manifests/keda" / transformer, folder.resolve())],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(folder)


def queries(document: Document) -> list[str]:
    return [t["metadata"]["query"] for t in document["spec"]["triggers"] if t["type"] == "prometheus"]


def test_the_example() -> None:
    document = scaled_object(EXAMPLE)
    assert document["metadata"]["namespace"] == "chat"
    assert queries(document) == [
        query.replace('"default"', '"chat"').replace('"llm"', '"qwen"') for query in queries(scaled_object(BASE))
    ]


@pytest.mark.parametrize("path", [path for path in SCALED_OBJECTS if path != EXAMPLE])
def test_every_query_is_of_the_new_namespace_and_name(path: str, tmp_path: Path) -> None:
    documents = retargeted(path, tmp_path)
    document = one(documents, "ScaledObject")
    assert document["spec"]["scaleTargetRef"]["name"] == "qwen-predictor"
    assert len(queries(document)) == len(queries(scaled_object(path)))
    for query in queries(document):
        for selector in selectors(query):
            assert selector.matchers["namespace"] == "chat"
            assert {v for k, v in selector.matchers.items() if k != "namespace"} <= {"qwen", "qwen-predictor"}
            assert len(selector.matchers) == 2
    assert document["metadata"]["name"] == "qwen"
    for route in of_kind(documents, "InterceptorRoute"):
        assert route["metadata"]["name"] == "qwen"
        assert route["spec"]["target"]["service"] == "qwen-predictor"
        assert [t["metadata"].get("interceptorRoute") for t in document["spec"]["triggers"]] == [None, None, "qwen"]
    # References hold: what a trigger names is there.
    assert keda_problems(document, [d for d in documents if d is not document]) == []
    assert {d["metadata"]["namespace"] for d in documents} == {"chat"}
    assert not any("llm" in d["metadata"]["name"] for d in documents)


@pytest.mark.parametrize("path", [path for path in SCALED_OBJECTS if path != EXAMPLE])
def test_nothing_but_names_is_changed(path: str, tmp_path: Path) -> None:
    before, after = scaled_object(path), one(retargeted(path, tmp_path), "ScaledObject")
    for query, made in zip(queries(before), queries(after), strict=True):
        assert made == query.replace("llm", "qwen").replace("default", "chat")
    for part in ("advanced", "fallback", "minReplicaCount", "maxReplicaCount"):
        assert before["spec"][part] == after["spec"][part]
