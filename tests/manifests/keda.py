"""The ScaledObjects of manifests/keda, ready to be played out."""

from __future__ import annotations

import dataclasses

from autoscaling.keda_spec import ScaledObject
from tests.manifests.kustomize import Document, build, of_kind, one
from tests.manifests.overlays import OVERLAYS

BASE = "manifests/keda/base"
OVERLAY = "manifests/keda/overlays/"


def with_kind(kind: str) -> list[str]:
    """The kustomizations of manifests/keda that make a document of this kind."""
    return [path for path in OVERLAYS if path.startswith("manifests/keda/") and of_kind(build(path), kind)]


SCALED_OBJECTS = with_kind("ScaledObject")
HPAS = with_kind("HorizontalPodAutoscaler")


def scaled_object(path: str) -> Document:
    """The ScaledObject of a kustomization."""
    return one(build(path), "ScaledObject")


def spec(path: str) -> ScaledObject:
    """The same as KEDA would run it; an external scaler's target is that of the InterceptorRoute that it names."""
    made = ScaledObject.of(scaled_object(path))
    routes = {d["metadata"]["name"]: d["spec"] for d in of_kind(build(path), "InterceptorRoute")}
    named = [t["metadata"].get("interceptorRoute") for t in scaled_object(path)["spec"]["triggers"]]
    triggers = [
        t
        if route is None
        else dataclasses.replace(t, target=routes[route]["scalingMetric"]["concurrency"]["targetValue"])
        for t, route in zip(made.triggers, named, strict=True)
    ]
    return dataclasses.replace(made, triggers=tuple(triggers))
