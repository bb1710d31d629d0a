"""Small schemas, written from their documentation, of what neither Kubernetes' schemas nor a CRD at hand covers.

NOTE: they know only the fields that our manifests use, so that a new field has to be looked up and added here.
"""

from __future__ import annotations

from typing import Any


def _record(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_TEXT = {"type": "string", "minLength": 1}
_TARGET = _record(
    ["group", "kind", "name"],
    group={"const": "gateway.networking.k8s.io"},
    kind={"enum": ["Gateway", "HTTPRoute", "GRPCRoute"]},
    name=_TEXT,
)

SCHEMAS: dict[tuple[str, str], dict[str, Any]] = {
    # Envoy Gateway: what a route has no field for.
    ("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"): _record(
        ["spec"],
        spec=_record(
            ["targetRefs"],
            targetRefs={"type": "array", "minItems": 1, "items": _TARGET},
            timeout=_record(
                [],
                http=_record([], requestTimeout={"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
            ),
        ),
    ),
}
"""Kinds without a CRD at hand, by (apiVersion, kind). `metadata` is checked apart."""

_PLUGINS = {
    "metrics-data-source": _record([], scheme={"enum": ["http", "https"]}, path=_TEXT),
    "core-metrics-extractor": _record(
        ["defaultEngine", "engineConfigs"],
        defaultEngine=_TEXT,
        engineConfigs={
            "type": "array",
            "minItems": 1,
            "items": _record(
                ["name", "queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"],
                name=_TEXT,
                queuedRequestsSpec=_TEXT,
                runningRequestsSpec=_TEXT,
                kvUsageSpec=_TEXT,
            ),
        },
    ),
    "queue-scorer": _record([]),
    "kv-cache-utilization-scorer": _record([]),
    "prefix-cache-scorer": _record([]),
    "max-score-picker": _record([]),
}
_REFERENCE = _record(["pluginRef"], pluginRef=_TEXT, weight={"type": "number", "exclusiveMinimum": 0})

ENDPOINT_PICKER_CONFIG: dict[str, Any] = _record(
    ["apiVersion", "kind", "plugins", "schedulingProfiles"],
    apiVersion={"const": "inference.networking.x-k8s.io/v1alpha1"},
    kind={"const": "EndpointPickerConfig"},
    plugins={
        "type": "array",
        "items": {
            "oneOf": [_record(["type"], type={"const": kind}, name=_TEXT, parameters=p) for kind, p in _PLUGINS.items()]
        },
    },
    schedulingProfiles={
        "type": "array",
        "items": _record(["name", "plugins"], name=_TEXT, plugins={"type": "array", "items": _REFERENCE}),
    },
    dataLayer=_record(
        ["sources"],
        sources={
            "type": "array",
            "items": _record(["pluginRef"], pluginRef=_TEXT, extractors={"type": "array", "items": _REFERENCE}),
        },
    ),
)
"""The endpoint picker's file (Gateway API Inference Extension 1.6): read by the picker, not by the API server."""
