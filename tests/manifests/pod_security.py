"""The restricted Pod Security Standard (kubernetes.io), as far as a pod's own fields decide it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)


def restricted_faults(pod: dict[str, Any]) -> list[str]:
    """What the admission of a namespace with `enforce: restricted` would refuse."""
    return list(_faults(pod))


def _faults(pod: dict[str, Any]) -> Iterator[str]:
    of_pod = pod.get("securityContext", {})
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    for volume in pod.get("volumes", []):
        kinds = volume.keys() - {"name"}
        if not kinds <= VOLUMES:
            yield f"volume {volume['name']}: {kinds}"
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container.get("securityContext", {})
        name = container["name"]
        if own.get("privileged"):
            yield f"{name}: privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation must be false"
        capabilities = own.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []):
            yield f"{name}: capabilities must drop ALL"
        if not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
            yield f"{name}: added capabilities"
        if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
            yield f"{name}: runAsNonRoot must be true"
        if own.get("runAsUser", of_pod.get("runAsUser")) == 0:
            yield f"{name}: runAsUser 0"
        profile = own.get("seccompProfile", of_pod.get("seccompProfile", {})).get("type")
        if profile not in {"RuntimeDefault", "Localhost"}:
            yield f"{name}: seccompProfile must be RuntimeDefault or Localhost"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield f"{name}: hostPort"
