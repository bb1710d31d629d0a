"""KServe's rules on every overlay, and what the overlays share."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from autoscaling.kserve_rules import check_inference_service, check_runtime, pod_labels, service_ports
from tests.manifests.kustomize import Document, build, of_kind, one
from tests.manifests.overlays import OVERLAYS

KSERVE = "manifests/kserve"
BASE = f"{KSERVE}/base"


def overlay(name: str) -> list[Document]:
    return build(f"{KSERVE}/overlays/{name}")


def base_container() -> dict[str, Any]:
    return one(build(BASE), "InferenceService")["spec"]["predictor"]["containers"][0]


@pytest.mark.parametrize("path", OVERLAYS)
def test_kserve_takes_it(path: str) -> None:
    for document in build(path):
        if document["kind"] == "InferenceService":
            assert check_inference_service(document) == []
        if document["kind"].endswith("ServingRuntime"):
            assert check_runtime(document) == []


@pytest.mark.parametrize("path", OVERLAYS)
def test_images_have_a_version(path: str) -> None:
    def images(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["image"]] if isinstance(value.get("image"), str) else []
            return own + [image for item in value.values() for image in images(item)]
        return [image for item in value for image in images(item)] if isinstance(value, list) else []

    for image in images(build(path)):
        tag = image.rpartition("/")[2].partition(":")[2]
        assert tag not in {"", "latest"}, image


# --- selectors and the labels that KServe sets ---


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "DoesNotExist"
        if expression["key"] in labels:
            return False
    return selector["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("path", [path for path in OVERLAYS if path.startswith(KSERVE)])
def test_selectors_match_the_labels_of_the_pods(path: str) -> None:
    documents = build(path)
    services = of_kind(documents, "InferenceService") or of_kind(build(BASE), "InferenceService")
    labels = {service["metadata"]["name"]: pod_labels(service) for service in services}
    for budget in of_kind(documents, "PodDisruptionBudget"):
        name = budget["metadata"]["name"].removesuffix("-predictor")
        for service, own in labels.items():
            assert selects(budget["spec"]["selector"], own) == (service == name)
    for service in of_kind(documents, "InferenceService"):
        for constraint in service["spec"]["predictor"].get("topologySpreadConstraints", []):
            assert selects(constraint["labelSelector"], labels[service["metadata"]["name"]])
    for policy in of_kind(documents, "NetworkPolicy"):
        assert selects(policy["spec"]["podSelector"], labels["llm"])
    for pool in of_kind(documents, "InferencePool"):
        assert selects(pool["spec"]["selector"], labels["llm"])


@pytest.mark.parametrize("path", [path for path in OVERLAYS if path.startswith(KSERVE)])
def test_every_service_has_its_disruption_budget(path: str) -> None:
    # NOTE: in Knative mode pods come and go with the requests, and KServe names nothing llm-predictor.
    documents = build(path)
    budgets = {budget["metadata"]["name"] for budget in of_kind(documents, "PodDisruptionBudget")}
    services = [] if path.endswith("/knative") else of_kind(documents, "InferenceService")
    assert budgets >= {f"{service['metadata']['name']}-predictor" for service in services}
    # minAvailable would hold up every drain of a node while there is one replica.
    for budget in of_kind(documents, "PodDisruptionBudget"):
        assert budget["spec"]["maxUnavailable"] == 1


# --- overlays against the base ---


def test_plain_is_what_kserve_would_make() -> None:
    service = one(build(BASE), "InferenceService")
    documents = overlay("plain")
    deployment = one(documents, "Deployment")
    template = deployment["spec"]["template"]
    expected = pod_labels(service)
    assert template["metadata"]["labels"] == deployment["metadata"]["labels"] == expected
    assert selects(deployment["spec"]["selector"], expected)
    made = one(documents, "Service")
    assert made["metadata"]["name"] == deployment["metadata"]["name"] == "llm-predictor"
    assert made["spec"]["selector"].items() <= expected.items()
    numbers = {port["name"]: port["containerPort"] for port in base_container()["ports"]}
    ports = [{**port, "targetPort": numbers[port["targetPort"]]} for port in made["spec"]["ports"]]
    assert [{k: v for k, v in port.items() if k != "protocol"} for port in ports] == service_ports(service)

    own, base = template["spec"], service["spec"]["predictor"]
    for field in (
        *("automountServiceAccountToken", "enableServiceLinks", "securityContext", "topologySpreadConstraints"),
        "terminationGracePeriodSeconds",
    ):
        assert own[field] == base[field], field
    differing = {k for k, v in own["containers"][0].items() if base["containers"][0][k] != v}
    assert differing == {"args", "env", "resources", "volumeMounts"}
    assert own["containers"][0]["args"][1:] == base["containers"][0]["args"][1:]
    assert own["containers"][0]["resources"]["limits"] == base["containers"][0]["resources"]["limits"]


def test_the_runtime_serves_as_the_base_does() -> None:
    documents = overlay("servingruntime")
    runtime = one(documents, "ClusterServingRuntime")
    container, base = runtime["spec"]["containers"][0], base_container()
    assert {k for k, v in container.items() if base[k] != v} == {"args"}
    assert container["args"] == [word.replace("=llm", "={{.Name}}") for word in base["args"]]
    assert runtime["spec"]["volumes"] == one(build(BASE), "InferenceService")["spec"]["predictor"]["volumes"]
    predictor = one(documents, "InferenceService")["spec"]["predictor"]
    pod = one(build(BASE), "InferenceService")["spec"]["predictor"]
    for field in ("timeout", "terminationGracePeriodSeconds", "securityContext", "topologySpreadConstraints"):
        assert predictor[field] == pod[field], field
    formats = {f["name"]: f for f in runtime["spec"]["supportedModelFormats"]}
    assert formats[predictor["model"]["modelFormat"]["name"]]["autoSelect"] is True
    assert predictor["model"]["protocolVersion"] in runtime["spec"]["protocolVersions"]


def test_credentials_reach_the_download_and_not_the_server() -> None:
    for name, secret in (("s3", "s3-credentials"), ("hf-token", "hf-token")):
        documents = overlay(name)
        account = one(documents, "ServiceAccount")
        assert account["secrets"] == [{"name": secret}]
        predictor = one(documents, "InferenceService")["spec"]["predictor"]
        assert predictor["serviceAccountName"] == account["metadata"]["name"]
        assert predictor["containers"][0]["env"] == base_container()["env"]
        assert not of_kind(documents, "Secret"), "a Secret in a manifest would overwrite the real one at each apply"


def test_the_pods_wait_for_the_model_and_end_when_told(tmp_path: Path) -> None:
    (waiting,) = one(overlay("plain"), "Deployment")["spec"]["template"]["spec"]["initContainers"]
    (other,) = one(overlay("pvc"), "InferenceService")["spec"]["predictor"]["initContainers"]
    assert other == waiting
    script = waiting["command"][2].replace("/mnt/models", str(tmp_path)).replace("sleep 5", "sleep 0.1")
    with subprocess.Popen([*waiting["command"][:2], script]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.terminate()
        assert process.wait(10) == 1
    with subprocess.Popen([*waiting["command"][:2], script]) as process:
        (tmp_path / "qwen2.5-1.5b-instruct.complete").touch()
        assert process.wait(10) == 0


def test_claims_are_filled_where_the_server_looks() -> None:
    for name in ("pvc", "plain"):
        documents = overlay(name)
        claim = one(documents, "PersistentVolumeClaim")["metadata"]["name"]
        job = one(documents, "Job")["spec"]["template"]["spec"]
        assert {v["persistentVolumeClaim"]["claimName"] for v in job["volumes"] if "persistentVolumeClaim" in v} == {
            claim
        }
        folder = job["initContainers"][0]["args"][1]
        server = next(d for d in documents if d["kind"] in {"InferenceService", "Deployment"})["spec"]
        pod = server["predictor"] if "predictor" in server else server["template"]["spec"]
        assert f"--model_dir={folder}" in pod["containers"][0]["args"]
        # What is written last is what the pods wait for, and it is no part of the model.
        assert job["containers"][0]["command"] == ["touch", f"{folder}.complete"]
        (waiting,) = pod["initContainers"]
        assert f"until [ -e {folder}.complete ]" in waiting["command"][2]
        volumes = {v["name"]: v.get("persistentVolumeClaim", {}).get("claimName") for v in pod["volumes"]}
        assert {volumes[m["name"]]: m["mountPath"] for m in waiting["volumeMounts"]} == {claim: "/mnt/models"}
        # Without the finished job an apply would fill the folder of running pods again.
        assert "ttlSecondsAfterFinished" not in one(documents, "Job")["spec"]
        if "storageUris" in pod:
            assert pod["storageUris"] == [{"uri": f"pvc://{claim}", "mountPath": "/mnt/models"}]
