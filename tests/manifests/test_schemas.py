"""The validator itself: it lets good documents pass and refuses what the API server would."""

from __future__ import annotations

from typing import Any

import pytest

from tests.manifests.schemas import InvalidDocumentError, validate


def config_map(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, **fields}


def isvc(predictor: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "a"},
        "spec": {"predictor": predictor},
    }


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "kserve-container", "image": "i", **fields}]}


def test_good_documents_pass() -> None:
    validate(config_map(data={"a": "b"}))
    validate(isvc({**container(), "timeout": 600}))


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (config_map(dta={"a": "b"}), "dta"),
        (config_map(data={"a": 1}), "data"),
        (config_map(metadata={"name": "a", "annotations": {"a": True}}), "annotations"),
        (config_map(metadata={"name": "a", "lables": {}}), "lables"),
        ({"apiVersion": "v1", "kind": "ConfgMap", "metadata": {"name": "a"}}, "no such kind"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, "metadata.name"),
        (isvc({**container(), "timeoutSeconds": 600}), "timeoutSeconds"),
        (isvc(container(livenessProbe={"httpGet": {"path": "/", "prt": 80}})), "prt"),
        (isvc(container(env=[{"name": "A", "valu": "b"}])), "valu"),
        (isvc(container(env=[{"name": "A", "value": 1}])), "value"),
        (isvc(container(env=[{"name": "A", "value": "b"}, {"name": "A", "value": "c"}])), "twice"),
        ({**isvc(container()), "metadata": {"name": "a", "annotations": {"a": 1}}}, "annotations"),
        ({"apiVersion": "serving.kserve.io/v9", "kind": "InferenceService", "metadata": {"name": "a"}}, "v9"),
        ({"apiVersion": "unknown.example/v1", "kind": "Thing", "metadata": {"name": "a"}}, "no CRD"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_faulty_documents_are_refused(document: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidDocumentError, match=named):
        validate(document)
