"""What KServe's webhooks and controllers refuse, or silently do wrong, in an InferenceService or a serving runtime.

Written from the behaviour of KServe 0.20 and 0.21 and, for the Knative mode, of Knative Serving with its default
feature flags. The schema of the CRD is checked elsewhere; here stand the rules that it cannot express.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]

MODE = "serving.kserve.io/deploymentMode"
CLASS = "serving.kserve.io/autoscalerClass"
MODES = {"Standard": "Standard", "RawDeployment": "Standard", "Knative": "Knative", "Serverless": "Knative"}
"""Each accepted name of a deployment mode, and the one in use today."""
AUTOSCALER_CLASSES = ("hpa", "keda", "external", "none")
CONTAINER = "kserve-container"
PROTOCOLS = ("v1", "v2")
BLOCKED_ENVIRONMENT = ("PYTHONPATH",)
FRAMEWORKS = (
    *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn", "tensorflow", "triton"),
    "xgboost",
)
AUTOSCALING_FIELDS = ("maxReplicas", "scaleTarget", "scaleMetric", "scaleMetricType", "autoScaling")
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
MAX_LABEL = 63
"""Characters of a DNS label, a label's value, and a Service's name."""

KNATIVE_POD_FIELDS = (
    *("terminationGracePeriodSeconds", "securityContext", "topologySpreadConstraints", "affinity", "nodeSelector"),
    *("tolerations", "initContainers", "runtimeClassName", "priorityClassName", "schedulerName", "hostAliases"),
    *("dnsPolicy", "dnsConfig", "hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "storageUris"),
)
"""Refused by Knative, or only accepted with a feature flag that is off by default."""
RUNTIME_POD_FIELDS = ("terminationGracePeriodSeconds", "initContainers", "serviceAccountName", "securityContext")
"""What a runtime cannot state; it stands on the InferenceService."""


def check_inference_service(document: Document) -> list[str]:
    """The faults of an InferenceService (v1beta1), each a sentence; none where KServe takes it and means it."""
    return list(_faults(document))


def check_update(old: Document, new: Document) -> list[str]:
    """Faults of an update: the deployment mode stays, and the predictor's name changes only with its model."""
    before, after = _mode(old), _mode(new)
    faults = []
    if before != after:
        faults.append(f"the deployment mode cannot change from {before} to {after}: delete the service first")
    predictors = [document["spec"]["predictor"] for document in (old, new)]
    if predictors[0].get("name") != predictors[1].get("name") and _model(predictors[0]) == _model(predictors[1]):
        # NOTE: KServe looks at one URI only, not at the list storageUris.
        faults.append("predictor.name may change only together with storageUri (promote in place instead)")
    return faults


def check_runtime(document: Document) -> list[str]:
    """Faults of a ServingRuntime or ClusterServingRuntime (v1alpha1)."""
    spec = document["spec"]
    faults = []
    names = [container["name"] for container in spec.get("containers", [])]
    if CONTAINER not in names:
        faults.append(f"no container is named {CONTAINER}: KServe would not find the server among {names}")
    for container in spec.get("containers", []):
        faults += _container_faults(container)
    for field in RUNTIME_POD_FIELDS:
        if field in spec:
            faults.append(f"{field} cannot stand on a runtime; set it on the InferenceService")
    seen: set[tuple[Any, ...]] = set()
    for entry in spec.get("supportedModelFormats", []):
        key = (entry["name"], entry.get("version"), entry.get("priority"))
        if entry.get("autoSelect") and key in seen:
            faults.append(f"model format {entry['name']} is listed twice with the same version and priority")
        seen.add(key)
        if entry.get("priority") is not None and not entry.get("autoSelect"):
            faults.append(f"model format {entry['name']} has a priority, which only counts with autoSelect")
    for protocol in spec.get("protocolVersions", []):
        if protocol not in {"v1", "v2", "grpc-v1", "grpc-v2"}:
            faults.append(f"protocolVersions holds {protocol!r}")
    return faults


def deployment_names(document: Document) -> list[str]:
    """Names of the Deployments (and Services) that KServe makes in Standard mode: the stable one, then canaries."""
    name = document["metadata"]["name"]
    stable = document["spec"]["predictor"].get("name")
    names = [f"{name}-{stable}-predictor" if stable else f"{name}-predictor"]
    return names + [f"{name}-{c['predictor'].get('name')}-predictor" for c in document["spec"].get("canary", [])]


def pod_labels(document: Document) -> dict[str, str]:
    """The labels of the stable predictor's pods in Standard mode."""
    return {
        **document["metadata"].get("labels", {}),
        **document["spec"]["predictor"].get("labels", {}),
        "app": f"isvc.{deployment_names(document)[0]}",
        "component": "predictor",
        "serving.kserve.io/inferenceservice": document["metadata"]["name"],
    }


def service_ports(document: Document) -> list[dict[str, Any]]:
    """The ports of the predictor's Service in Standard mode: the first container port becomes 80, the others stay."""
    made = []
    for index, port in enumerate(document["spec"]["predictor"]["containers"][0].get("ports", [])):
        entry = {"name": port.get("name", "http"), "port": port["containerPort"] if index else 80}
        entry["targetPort"] = port["containerPort"]
        if "grpc" in entry["name"] or "h2c" in entry["name"]:
            entry["appProtocol"] = "kubernetes.io/h2c"
        made.append(entry)
    return made


# --- the rules ---


def _faults(document: Document) -> Iterator[str]:
    annotations = document["metadata"].get("annotations", {})
    spec = document["spec"]
    predictor = spec["predictor"]
    mode = _mode(document)
    if MODE not in annotations:
        yield f"without the annotation {MODE} the cluster's default decides, which is Knative as shipped"
    elif annotations[MODE] not in MODES:
        yield f"{MODE} is {annotations[MODE]!r}; known are {', '.join(MODES)}"
    if annotations.get(CLASS, "hpa") not in AUTOSCALER_CLASSES:
        yield f"{CLASS} is {annotations[CLASS]!r}; known are {', '.join(AUTOSCALER_CLASSES)}"
    yield from _name_faults(document)
    yield from _implementation_faults(predictor)
    for container in [*predictor.get("containers", []), *predictor.get("initContainers", [])]:
        yield from _container_faults(container)
    yield from _storage_faults(predictor)
    yield from _replica_faults(predictor)
    if mode == "Knative":
        yield from _knative_faults(predictor)
    else:
        yield from _standard_faults(predictor, annotations.get(CLASS, "hpa"))
    yield from _canary_faults(spec, mode, annotations.get(CLASS, "hpa"))
    yield from _worker_faults(predictor, annotations.get(CLASS))


def _mode(document: Document) -> str:
    return MODES.get(document["metadata"].get("annotations", {}).get(MODE, "Knative"), "Knative")


def _model(predictor: Document) -> Any:
    """The one URI that KServe compares."""
    by_environment = [
        v.get("value") for c in predictor.get("containers", []) for v in _env(c) if v["name"] == "STORAGE_URI"
    ]
    return predictor.get("model", {}).get("storageUri", by_environment)


def _name_faults(document: Document) -> Iterator[str]:
    name = document["metadata"]["name"]
    if NAME.fullmatch(name) is None:
        yield f"the name {name!r} must start with a letter and hold small letters, digits and - only"
    for made in deployment_names(document):
        # NOTE: the longest thing made of it is the value of the label app.
        if len(f"isvc.{made}") > MAX_LABEL:
            yield f"the name makes the label app=isvc.{made}, of more than {MAX_LABEL} characters"


def _implementation_faults(predictor: Document) -> Iterator[str]:
    ways = [field for field in FRAMEWORKS if field in predictor]
    # NOTE: beside a framework, containers are sidecars, unless one of them has the predictor's name.
    containers = [container["name"] for container in predictor.get("containers", [])]
    if not ways and not containers:
        yield "the predictor has neither a model nor containers"
    if len(ways) > 1:
        yield f"the predictor has more than one of {', '.join(ways)}"
    if ways and CONTAINER in containers:
        yield f"the predictor has both {ways[0]} and a container named {CONTAINER}"
    if not ways and containers and CONTAINER not in containers:
        yield f"no container is named {CONTAINER}: KServe would not find the server among {containers}"


def _container_faults(container: Document) -> Iterator[str]:
    for variable in container.get("env", []):
        if variable["name"] == "PROTOCOL" and variable.get("value") not in PROTOCOLS:
            yield f"PROTOCOL is {variable.get('value')!r}; a custom predictor may say {' or '.join(PROTOCOLS)} only"
        if variable["name"] in BLOCKED_ENVIRONMENT:
            yield f"setting {variable['name']} is refused"


def _storage_faults(predictor: Document) -> Iterator[str]:
    uris = predictor.get("storageUris", [])
    by_environment = any(v["name"] == "STORAGE_URI" for c in predictor.get("containers", []) for v in c.get("env", []))
    if uris and (by_environment or "storageUri" in predictor.get("model", {})):
        yield "storageUris stands beside STORAGE_URI or model.storageUri: give one of them"
    for entry in uris:
        path = entry.get("mountPath", "/mnt/models")
        if not path.startswith("/") or path == "/" or ".." in path:
            yield f"mountPath {path!r} must be an absolute path below / without .."
        claim = entry["uri"].removeprefix("pvc://")
        if claim != entry["uri"] and "/" in claim.strip("/"):
            yield f"{entry['uri']}: the path after the claim is dropped in storageUris; put it into --model_dir"


def _replica_faults(predictor: Document) -> Iterator[str]:
    least, most = predictor.get("minReplicas", 1), predictor.get("maxReplicas", 0)
    if least < 0 or most < 0:
        yield "minReplicas and maxReplicas must be 0 or more"
    if most and least > most:
        yield f"minReplicas {least} is greater than maxReplicas {most}"
    if predictor.get("containerConcurrency", 0) < 0:
        yield "containerConcurrency must be 0 or more"


def _standard_faults(predictor: Document, autoscaler: str) -> Iterator[str]:
    if "canaryTrafficPercent" in predictor:
        yield "canaryTrafficPercent works in Knative mode only; use spec.canary"
    if "timeout" not in predictor:
        yield "without timeout the HTTPRoute cuts every stream after 60 s"
    metric, target = predictor.get("scaleMetric"), predictor.get("scaleTarget")
    if autoscaler == "hpa":
        if metric not in {None, "cpu", "memory"}:
            yield f"scaleMetric {metric} is none that the hpa class knows (cpu, memory)"
        if target is not None and metric in {None, "cpu"} and not 1 <= target <= 100:
            yield f"scaleTarget {target} must be a percentage from 1 to 100"
    if autoscaler == "keda" and metric is not None:
        yield "scaleMetric is refused with the keda class; use autoScaling"
    if autoscaler == "external":
        given = [f for f in ("minReplicas", *AUTOSCALING_FIELDS) if f in predictor]
        if given:
            yield f"{', '.join(given)}: with the external class the number of replicas is the autoscaler's alone"


def _knative_faults(predictor: Document) -> Iterator[str]:
    if "deploymentStrategy" in predictor:
        yield "deploymentStrategy is refused in Knative mode"
    if predictor.get("scaleMetric") not in {None, "concurrency", "rps"}:
        yield f"scaleMetric {predictor['scaleMetric']} is none that Knative knows (concurrency, rps)"
    for field in KNATIVE_POD_FIELDS:
        if field in predictor:
            yield f"{field} is refused by Knative, or needs a feature flag that is off by default"
    for container in predictor.get("containers", []):
        if len(container.get("ports", [])) > 1:
            yield "Knative allows one port"
        if any(port.get("name") not in {None, "http1", "h2c"} for port in container.get("ports", [])):
            yield "Knative knows the port names http1 and h2c only"
        if "lifecycle" in container:
            yield "lifecycle hooks are refused by Knative"
        if any(
            "valueFrom" in v and not v["valueFrom"].keys() & {"secretKeyRef", "configMapKeyRef"}
            for v in _env(container)
        ):
            yield "fieldRef and resourceFieldRef need a feature flag of Knative that is off by default"
    percent = predictor.get("canaryTrafficPercent", 0)
    if not 0 <= percent <= 100:
        yield f"canaryTrafficPercent {percent} must lie between 0 and 100"


def _env(container: Document) -> list[Document]:
    variables: list[Document] = container.get("env", [])
    return variables


def _canary_faults(spec: Document, mode: str, autoscaler: str) -> Iterator[str]:
    canaries = spec.get("canary", [])
    if not canaries:
        return
    if mode != "Standard":
        yield "spec.canary works in Standard mode only; use canaryTrafficPercent"
    if autoscaler != "none":
        yield f"spec.canary splits a fixed number of replicas: {CLASS} must be none, not {autoscaler}"
    total = sum(canary["trafficPercent"] for canary in canaries)
    if total > 100:
        yield f"the canaries' trafficPercent add up to {total}, more than 100"
    names = [canary["predictor"].get("name") for canary in canaries]
    if None in names or "" in names:
        yield "a canary needs predictor.name"
    if len(set(names)) < len(names) or spec["predictor"].get("name") in {n for n in names if n}:
        yield f"the names of the canaries must differ from each other and from the predictor's: {names}"
    for canary in [*canaries, {"predictor": spec["predictor"]}]:
        given = [field for field in AUTOSCALING_FIELDS if field in canary["predictor"]]
        if given:
            yield f"{', '.join(given)}: nothing scales while spec.canary is set"


def _worker_faults(predictor: Document, autoscaler: str | None) -> Iterator[str]:
    if "workerSpec" not in predictor:
        return
    if autoscaler != "none":
        yield f"workerSpec needs {CLASS}: none"
    uri = predictor.get("model", {}).get("storageUri", "")
    if uri.split("://")[0] not in {"pvc", "oci"}:
        yield f"workerSpec needs weights that every node mounts (pvc:// or oci://), not {uri or 'none'}"
