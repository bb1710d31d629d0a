"""Each rule of KServe's, with an example that breaks it, and one that keeps all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from autoscaling.kserve_rules import (
    CLASS,
    MODE,
    check_inference_service,
    check_runtime,
    check_update,
    deployment_names,
    pod_labels,
    service_ports,
)

Document = dict[str, Any]
Change = Callable[[Document], object]


def service() -> Document:
    """An InferenceService without a fault."""
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "llm", "annotations": {MODE: "Standard", CLASS: "external"}},
        "spec": {
            "predictor": {
                "timeout": 600,
                "storageUris": [{"uri": "hf://a/b", "mountPath": "/mnt/models"}],
                "containers": [
                    {
                        "name": "kserve-container",
                        "env": [{"name": "PROTOCOL", "value": "v2"}],
                        "ports": [{"name": "http", "containerPort": 8080}, {"name": "h2c-grpc", "containerPort": 8081}],
                    }
                ],
            }
        },
    }


def knative() -> Document:
    document = service()
    document["metadata"]["annotations"] = {MODE: "Knative"}
    predictor = document["spec"]["predictor"]
    del predictor["storageUris"]
    predictor["containers"][0]["ports"] = [{"name": "http1", "containerPort": 8080}]
    return document


def with_canary() -> Document:
    document = service()
    document["metadata"]["annotations"][CLASS] = "none"
    document["spec"]["canary"] = [{"trafficPercent": 10, "predictor": {"name": "v2"}}]
    return document


def predictor(**fields: Any) -> Change:
    return lambda document: document["spec"]["predictor"].update(fields)


def container(**fields: Any) -> Change:
    return lambda document: document["spec"]["predictor"]["containers"][0].update(fields)


def annotation(key: str, value: str) -> Change:
    return lambda document: document["metadata"]["annotations"].update({key: value})


def both(*changes: Change) -> Change:
    return lambda document: [change(document) for change in changes]


def canary(*entries: tuple[str | None, int]) -> Change:
    made = [{"trafficPercent": n, "predictor": {"name": name} if name else {}} for name, n in entries]
    return lambda document: document["spec"].update(canary=made)


@pytest.mark.parametrize("document", [service(), knative(), with_canary()], ids=["standard", "knative", "canary"])
def test_no_fault(document: Document) -> None:
    assert check_inference_service(document) == []


STANDARD_FAULTS: list[tuple[Change, str]] = [
    (lambda d: d["metadata"]["annotations"].pop(MODE), "cluster's default"),
    (annotation(MODE, "Raw"), "'Raw'"),
    (annotation(CLASS, "KEDA"), "'KEDA'"),
    (lambda d: d["metadata"].update(name="1llm"), "start with a letter"),
    (lambda d: d["metadata"].update(name="llm-"), "start with a letter"),
    (lambda d: d["metadata"].update(name="Llm"), "start with a letter"),
    (lambda d: d["metadata"].update(name="l" * 49), "more than 63"),
    (lambda d: d["spec"]["predictor"].pop("containers"), "neither a model nor containers"),
    (predictor(sklearn={}, triton={}), "more than one of"),
    (predictor(model={}), "both model and a container"),
    (container(name="server"), "no container is named"),
    (container(env=[{"name": "PROTOCOL", "value": "grpc-v2"}]), "PROTOCOL"),
    (container(env=[{"name": "PYTHONPATH", "value": "/app"}]), "PYTHONPATH"),
    (container(env=[{"name": "STORAGE_URI", "value": "hf://a/b"}]), "give one of them"),
    (predictor(storageUris=[{"uri": "hf://a/b", "mountPath": "mnt"}]), "mountPath 'mnt'"),
    (predictor(storageUris=[{"uri": "hf://a/b", "mountPath": "/"}]), "mountPath '/'"),
    (predictor(storageUris=[{"uri": "hf://a/b", "mountPath": "/mnt/../etc"}]), "mountPath"),
    (predictor(storageUris=[{"uri": "pvc://claim/qwen"}]), "dropped"),
    (predictor(minReplicas=-1), "0 or more"),
    (predictor(minReplicas=3, maxReplicas=2), "greater than maxReplicas"),
    (predictor(containerConcurrency=-1), "containerConcurrency"),
    (predictor(canaryTrafficPercent=10), "Knative mode only"),
    (lambda d: d["spec"]["predictor"].pop("timeout"), "60 s"),
    (predictor(minReplicas=1), "autoscaler's alone"),
    (both(annotation(CLASS, "hpa"), predictor(scaleMetric="rps")), "scaleMetric rps"),
    (both(annotation(CLASS, "hpa"), predictor(scaleTarget=120)), "scaleTarget 120"),
    (both(annotation(CLASS, "keda"), predictor(scaleMetric="cpu")), "keda class"),
    (canary(("v2", 10)), "must be none"),
    (predictor(workerSpec={}), "needs serving.kserve.io/autoscalerClass: none"),
    (predictor(workerSpec={}), "pvc:// or oci://"),
]

KNATIVE_FAULTS: list[tuple[Change, str]] = [
    (predictor(deploymentStrategy={}), "deploymentStrategy"),
    (predictor(scaleMetric="cpu"), "scaleMetric cpu"),
    (predictor(terminationGracePeriodSeconds=60), "terminationGracePeriodSeconds"),
    (predictor(storageUris=[{"uri": "hf://a/b"}]), "storageUris"),
    (container(ports=[{"containerPort": 8080}, {"containerPort": 8081}]), "one port"),
    (container(ports=[{"name": "http", "containerPort": 8080}]), "port names"),
    (container(lifecycle={"preStop": {"sleep": {"seconds": 1}}}), "lifecycle"),
    (container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]), "fieldRef"),
    (predictor(canaryTrafficPercent=101), "between 0 and 100"),
    (canary(("v2", 10)), "Standard mode only"),
]

CANARY_FAULTS: list[tuple[Change, str]] = [
    (annotation(CLASS, "external"), "must be none"),
    (canary(("v2", 60), ("v3", 50)), "add up to 110"),
    (canary((None, 10)), "needs predictor.name"),
    (canary(("v2", 10), ("v2", 20)), "must differ"),
    (both(predictor(name="v2"), canary(("v2", 10))), "must differ"),
    (predictor(maxReplicas=4), "nothing scales"),
    (lambda d: d["spec"]["canary"][0]["predictor"].update(scaleTarget=4), "nothing scales"),
    (canary(("x" * 50, 10)), "more than 63"),
]


@pytest.mark.parametrize(
    ("make", "change", "named"),
    [
        *[(service, *fault) for fault in STANDARD_FAULTS],
        *[(knative, *fault) for fault in KNATIVE_FAULTS],
        *[(with_canary, *fault) for fault in CANARY_FAULTS],
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fault(make: Callable[[], Document], change: Change, named: str) -> None:
    document = make()
    change(document)
    assert [fault for fault in check_inference_service(document) if named in fault]


def test_longest_name_that_fits() -> None:
    document = service()
    document["metadata"]["name"] = "l" * 48
    assert check_inference_service(document) == []
    assert len(pod_labels(document)["app"]) == 63


def test_deployment_mode_of_a_running_service_is_fixed() -> None:
    assert check_update(service(), knative()) == [
        "the deployment mode cannot change from Standard to Knative: delete the service first"
    ]
    renamed = service()
    renamed["metadata"]["annotations"][MODE] = "RawDeployment"
    assert check_update(service(), renamed) == []


def test_a_predictor_is_renamed_only_with_its_model() -> None:
    old, new = service(), service()
    new["spec"]["predictor"]["name"] = "v2"
    # The list storageUris does not count for it: such a canary is promoted in place.
    new["spec"]["predictor"]["storageUris"] = [{"uri": "hf://c/d"}]
    assert ["storageUri" in fault for fault in check_update(old, new)] == [True]
    for document, uri in ((old, "hf://a/b"), (new, "hf://c/d")):
        document["spec"]["predictor"] = {**document["spec"]["predictor"], "model": {"storageUri": uri}}
    assert check_update(old, new) == []


def runtime(**fields: Any) -> Document:
    spec = {"containers": [{"name": "kserve-container"}], "supportedModelFormats": [{"name": "a", "autoSelect": True}]}
    return {"metadata": {"name": "r"}, "spec": {**copy.deepcopy(spec), **fields}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"containers": [{"name": "server"}]}, "no container is named"),
        ({"containers": [{"name": "kserve-container", "env": [{"name": "PROTOCOL", "value": "v3"}]}]}, "PROTOCOL"),
        ({"terminationGracePeriodSeconds": 60}, "terminationGracePeriodSeconds"),
        ({"supportedModelFormats": [{"name": "a", "autoSelect": True}] * 2}, "listed twice"),
        ({"supportedModelFormats": [{"name": "a", "priority": 1}]}, "autoSelect"),
        ({"protocolVersions": ["v9"]}, "v9"),
    ],
)
def test_runtime_fault(fields: Document, named: str) -> None:
    assert check_runtime(runtime()) == []
    assert [fault for fault in check_runtime(runtime(**fields)) if named in fault]


def test_what_kserve_makes_of_it() -> None:
    document = with_canary()
    assert deployment_names(document) == ["llm-predictor", "llm-v2-predictor"]
    assert pod_labels(document)["app"] == "isvc.llm-predictor"
    assert service_ports(document) == [
        {"name": "http", "port": 80, "targetPort": 8080},
        {"name": "h2c-grpc", "port": 8081, "targetPort": 8081, "appProtocol": "kubernetes.io/h2c"},
    ]
    document["spec"]["predictor"]["name"] = "v1"
    assert deployment_names(document)[0] == "llm-v1-predictor"
