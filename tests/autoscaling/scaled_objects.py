"""A ScaledObject to vary."""

from __future__ import annotations

import copy
from typing import Any

Document = dict[str, Any]

QUERY = 'sum(pagedserve_requests_running{namespace="default",inferenceservice="llm"})'

GOOD: Document = {
    "apiVersion": "keda.sh/v1alpha1",
    "kind": "ScaledObject",
    "metadata": {"name": "llm"},
    "spec": {
        "scaleTargetRef": {"name": "llm-predictor"},
        "minReplicaCount": 1,
        "maxReplicaCount": 5,
        "fallback": {"failureThreshold": 3, "replicas": 4},
        "triggers": [
            {
                "type": "prometheus",
                "name": "requests",
                "metadata": {
                    "serverAddress": "http://prometheus:9090",
                    "query": QUERY,
                    "threshold": "10",
                    "ignoreNullValues": "false",
                },
            }
        ],
    },
}


def changed(*changes: tuple[str, Any]) -> Document:
    """GOOD with values set at dotted paths below spec (or metadata, written .metadata.…); None takes one away."""
    document = copy.deepcopy(GOOD)
    for path, value in changes:
        place: Any = document if path.startswith(".") else document["spec"]
        *parents, last = path.strip(".").split(".")
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
        if isinstance(place, list):
            place.append(value) if last == "-" else place.__setitem__(int(last), value)
        elif value is None:
            del place[last]
        else:
            place[last] = value
    return document


def trigger(kind: str, name: str | None = None, **metadata: str) -> Document:
    """A trigger."""
    made: Document = {"type": kind, "metadata": metadata}
    return made if name is None else {**made, "name": name}
