"""The canary's weights, and what its two patches leave: `kubectl patch` itself applies them, without a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from autoscaling.kserve_rules import check_inference_service, deployment_names
from tests.manifests.kustomize import MANIFESTS, Document, build, kubectl, one, parse
from tests.manifests.schemas import validate

CANARY = MANIFESTS / "kserve" / "overlays" / "canary"


def running() -> Document:
    return one(build(CANARY), "InferenceService")


def stable() -> Document:
    return one(build(MANIFESTS / "kserve" / "base"), "InferenceService")


def patch(document: Document, name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "before.yaml"
    file.write_text(yaml.safe_dump(document))
    command = [kubectl(), "patch", "--local", "-f", str(file), "--type=json", "-o", "yaml"]
    return subprocess.run(
        [*command, "--patch-file", str(CANARY / name)], capture_output=True, text=True, timeout=60, check=False
    )


def patched(name: str, folder: Path) -> Document:
    done = patch(running(), name, folder)
    assert done.returncode == 0, done.stderr
    (document,) = parse(done.stdout)
    return document


def test_a_tenth_goes_to_a_second_version_of_the_same_kind() -> None:
    document = running()
    assert deployment_names(document) == ["llm-predictor", "llm-v2-predictor"]
    (canary,) = document["spec"]["canary"]
    assert canary["trafficPercent"] == 10
    assert canary["predictor"].keys() == {"name", "storageUris", "containers"}, "the rest is inherited"
    assert canary["predictor"]["containers"] == document["spec"]["predictor"]["containers"]
    assert canary["predictor"]["storageUris"] != document["spec"]["predictor"]["storageUris"]
    assert document["spec"]["predictor"]["minReplicas"] >= 2


def test_promotion_makes_the_canarys_model_the_stable_one(tmp_path: Path) -> None:
    document = patched("promote.yaml", tmp_path)
    validate(document)
    assert check_inference_service(document) == []
    expected = stable()
    expected = {**expected, "spec": {"predictor": {**expected["spec"]["predictor"]}}}
    expected["spec"]["predictor"]["storageUris"] = running()["spec"]["canary"][0]["predictor"]["storageUris"]
    assert document == expected
    assert deployment_names(document) == ["llm-predictor"]


def test_roll_back_leaves_what_was_before(tmp_path: Path) -> None:
    assert patched("roll-back.yaml", tmp_path) == stable()


@pytest.mark.parametrize("name", ["promote.yaml", "roll-back.yaml"])
def test_without_that_canary_the_patch_is_refused(name: str, tmp_path: Path) -> None:
    document = running()
    document = {
        **document,
        "spec": {**document["spec"], "canary": [{"trafficPercent": 10, "predictor": {"name": "v3"}}]},
    }
    assert patch(document, name, tmp_path).returncode != 0
    assert patch(stable(), name, tmp_path).returncode != 0
