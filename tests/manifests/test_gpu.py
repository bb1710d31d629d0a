"""The overlays that run a model on a GPU or a slice of one."""

from __future__ import annotations

import inspect
from dataclasses import replace
from importlib.metadata import entry_points

import pytest
from huggingface_hub.cli.download import download

from autoscaling.kserve_rules import pod_labels
from predictor.args import parse_config
from tests.manifests.kustomize import build, one
from tests.manifests.pods import SERVER_PODS, ServerPod
from tests.manifests.test_dockerfile import environment

GPU_PODS = [pod for pod in SERVER_PODS if pod.uses_gpu or pod.config.engine.device == "cuda"]
GIB = 2**30

each_gpu_pod = pytest.mark.parametrize("pod", GPU_PODS, ids=str)


def test_they_are_found() -> None:
    overlays = {pod.overlay.rpartition("/")[2]: pod.gpus for pod in GPU_PODS}
    assert overlays["gpu"] == {"nvidia.com/gpu": "1"}
    assert overlays["gpu-mig"] == {"nvidia.com/mig-3g.40gb": "1"}


@each_gpu_pod
def test_one_device_and_the_flag_for_it(pod: ServerPod) -> None:
    # One process runs the model, on one device; a second one would lie idle.
    assert list(pod.gpus.values()) == ["1"]
    requests = pod.container["resources"]["requests"]
    assert {name: requests[name] for name in pod.gpus} == pod.gpus, "an extended resource is never overcommitted"
    # `auto` would take the CPU where the GPU is not seen, and be ready.
    assert pod.config.engine.device == "cuda"
    assert pod.config.engine.memory_utilization <= 0.95, "CUDA's own memory and what graphs take need room"


@each_gpu_pod
def test_it_may_be_placed_on_gpu_nodes(pod: ServerPod) -> None:
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod.spec["tolerations"]
    assert pod.spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    # Restricted: the device plugin hands the device in, no privilege does.
    assert "privileged" not in pod.container["securityContext"]


@each_gpu_pod
def test_memory_and_storage_for_the_weights(pod: ServerPod) -> None:
    memory = int(pod.container["resources"]["limits"]["memory"].removesuffix("Gi")) * GIB
    weights = 15.2e9  # Qwen2.5-7B-Instruct in bfloat16
    assert memory > 1.5 * weights, "they pass through main memory"
    storage = int(pod.container["resources"]["requests"]["ephemeral-storage"].removesuffix("Gi")) * GIB
    assert storage > 2 * weights, "downloaded into the pod's own storage, beside caches and logs"


def test_the_claim_is_filled_with_what_the_pods_would_compile() -> None:
    overlay = "manifests/kserve/overlays/gpu-kernel-cache"
    (pod,) = [pod for pod in GPU_PODS if pod.overlay == overlay]
    documents = build(f"{overlay}/fill")
    assert one(documents, "PersistentVolumeClaim") == one(build(overlay), "PersistentVolumeClaim")
    spec = one(documents, "Job")["spec"]
    job = spec["template"]["spec"]
    (config,), (warmup,) = job["initContainers"], job["containers"]
    assert config["image"] == warmup["image"] == pod.container["image"]
    assert warmup["args"] == ["warmup", *pod.container["args"], "--load_format=dummy"]
    assert parse_config(warmup["args"][1:], {}).engine == replace(pod.config.engine, load_format="dummy")
    # The same kind of place, and no more of the model than a random one needs.
    for field in ("nodeSelector", "tolerations"):
        assert job[field] == pod.spec[field]
    gpu = warmup["resources"]["limits"]["nvidia.com/gpu"]
    assert gpu == warmup["resources"]["requests"]["nvidia.com/gpu"] == pod.gpus["nvidia.com/gpu"]
    (source,) = pod.spec["storageUris"]
    folder = source["mountPath"]
    assert config["command"] == [
        *("hf", "download", source["uri"].removeprefix("hf://"), "config.json", f"--local-dir={folder}")
    ]
    mounts = {mount["mountPath"]: mount for mount in warmup["volumeMounts"]}
    assert mounts[folder]["name"] in {m["name"] for m in config["volumeMounts"] if m["mountPath"] == folder}
    # Triton writes its entries' own paths into them.
    (kernels,) = [m for m in pod.container["volumeMounts"] if m["name"] == "kernels"]
    assert mounts[environment()["TRITON_CACHE_DIR"]] == kernels
    assert {volume["name"]: volume for volume in job["volumes"]}["kernels"] == next(
        volume for volume in pod.spec["volumes"] if volume["name"] == "kernels"
    )
    # No pod waits for it: nothing is left of it but what it compiled.
    assert spec["ttlSecondsAfterFinished"] > 30 * 60, "later than the wait that its page tells of"
    labels = one(documents, "Job")["spec"]["template"].get("metadata", {}).get("labels", {})
    assert not pod_labels(pod.document).items() <= labels.items(), "the Service must not lead to it"


def test_the_image_has_what_fetches_the_configuration() -> None:
    (script,) = entry_points(group="console_scripts", name="hf")
    assert script.dist is not None
    assert script.dist.name in {"huggingface_hub", "huggingface-hub"}, "which transformers brings along"
    assert "local_dir" in inspect.signature(download).parameters


def test_shared_kernels_are_where_triton_looks() -> None:
    overlay = "manifests/kserve/overlays/gpu-kernel-cache"
    (pod,) = [pod for pod in GPU_PODS if pod.overlay == overlay]
    claim = one(build(overlay), "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (volume,) = [v for v in pod.spec["volumes"] if "persistentVolumeClaim" in v]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (mount,) = [m for m in pod.container["volumeMounts"] if m["name"] == volume["name"]]
    assert mount["mountPath"] == environment()["TRITON_CACHE_DIR"]
    assert not mount.get("readOnly"), "what is missing is compiled and added"
