"""The pods that the manifests make: the servers among them with all that bears on a server's life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoscaling.kserve_rules import CONTAINER, MODE
from predictor.args import parse_config
from predictor.config import ServerConfig
from tests.manifests.kustomize import Document, build
from tests.manifests.overlays import OVERLAYS

WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet", "Job")


@dataclass(frozen=True)
class ServerPod:
    """A pod with a pagedserve server in it. overlay: where it stands; document: what makes it; spec: the pod's."""

    overlay: str
    document: Document
    spec: dict[str, Any]
    container: dict[str, Any]

    def __str__(self) -> str:
        name = self.overlay.removeprefix("manifests/")
        return f"{name}:{self.document['kind']}/{self.document['metadata']['name']}"

    @property
    def is_knative(self) -> bool:
        return self.document["metadata"].get("annotations", {}).get(MODE) == "Knative"

    @property
    def gpus(self) -> dict[str, str]:
        """The extended resources of NVIDIA's device plugin that it is limited to."""
        limits = self.container["resources"]["limits"]
        return {name: number for name, number in limits.items() if name.startswith("nvidia.com/")}

    @property
    def uses_gpu(self) -> bool:
        return bool(self.gpus)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with a value that stands in the manifest."""
        return {v["name"]: v["value"] for v in self.container.get("env", []) if "value" in v}

    @property
    def config(self) -> ServerConfig:
        """What the real server makes of its arguments and environment."""
        words = [word.replace("{{.Name}}", "llm") for word in self.container.get("args", [])]
        return parse_config(words, self.environment)

    @property
    def grace(self) -> int:
        """Seconds from the order to stop to SIGKILL."""
        if self.is_knative:
            # NOTE: Knative takes the revision's timeout.
            return int(self.spec["timeout"])
        return int(self.spec.get("terminationGracePeriodSeconds", 30))


def pods(documents: list[Document]) -> list[tuple[Document, dict[str, Any]]]:
    """Each document that makes pods, with the pod's spec. A runtime's is completed by the service that names it."""
    runtimes = {d["metadata"]["name"]: d for d in documents if d["kind"].endswith("ServingRuntime")}
    found = []
    for document in documents:
        if document["kind"] in WORKLOADS:
            found.append((document, document["spec"]["template"]["spec"]))
        if document["kind"] == "InferenceService":
            predictor = document["spec"]["predictor"]
            if "model" in predictor:
                model = predictor["model"]
                runtime = runtimes[model.get("runtime", model["modelFormat"]["name"])]
                found.append((document, {**runtime["spec"], **predictor}))
            else:
                found.append((document, predictor))
                canaries = document["spec"].get("canary", [])
                found += [(document, {**predictor, **canary["predictor"]}) for canary in canaries]
    return found


def _server_pods() -> list[ServerPod]:
    return [
        ServerPod(overlay, document, spec, container)
        for overlay in OVERLAYS
        for document, spec in pods(build(overlay))
        for container in spec["containers"]
        if container["name"] == CONTAINER
    ]


SERVER_PODS = _server_pods()
"""Of every overlay."""
