"""`/metrics` and `/version`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastapi import APIRouter
from prometheus_client import REGISTRY, CollectorRegistry, exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.metrics import package_version


class MergedCollector(Collector):
    """The metrics of several registries, as one."""

    def __init__(self, registries: Iterable[CollectorRegistry]) -> None:
        self._registries = tuple(registries)

    def collect(self) -> Iterator[Metric]:
        for registry in self._registries:
            yield from registry.collect()


def build_router(registry: CollectorRegistry) -> APIRouter:
    """`registry`'s metrics, then those of the process-wide registry: process, platform, and KServe's or a model's own.

    The exposition format follows the Accept header (Prometheus text, or OpenMetrics).
    """
    merged = CollectorRegistry()
    merged.register(MergedCollector((registry, REGISTRY)))
    router = APIRouter(default_response_class=JSONResponse)

    async def metrics(request: Request) -> Response:
        encode, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
        return Response(encode(merged), headers={"content-type": content_type})

    async def version() -> JSONResponse:
        return JSONResponse({"version": package_version()})

    router.add_api_route("/metrics", metrics, methods=["GET"])
    router.add_api_route("/version", version, methods=["GET"])
    return router
