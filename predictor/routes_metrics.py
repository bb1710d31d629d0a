"""`/metrics` and `/version`."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

from fastapi import APIRouter
from prometheus_client import REGISTRY, CollectorRegistry, exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.metrics import package_version
from engine.metrics_aliases import Aliases

GZIP_LEVEL = 1
"""A page shrinks to a twelfth at this level already, in half a millisecond."""


class MetricsPage(Collector):
    """`registry`'s metrics, under `aliases` too, then those of the process-wide registry: KServe's, a model's own.

    NOTE: one page is one collection on the event loop, on which the metrics are fed: no value changes halfway down it,
    and an alias has the very value of its source.
    """

    def __init__(self, registry: CollectorRegistry, aliases: Aliases | None = None) -> None:
        self._registry = registry
        self._aliases = aliases

    def collect(self) -> Iterator[Metric]:
        own = list(self._registry.collect())
        yield from own
        if self._aliases is not None:
            yield from self._aliases(own)
        yield from REGISTRY.collect()


def build_router(registry: CollectorRegistry, aliases: Aliases | None = None) -> APIRouter:
    """Serves `MetricsPage`. The format follows Accept (Prometheus text, or OpenMetrics), gzip Accept-Encoding."""
    page = MetricsPage(registry, aliases)
    router = APIRouter(default_response_class=JSONResponse)

    async def metrics(request: Request) -> Response:
        encode, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
        body = encode(page)
        headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            body = gzip.compress(body, GZIP_LEVEL)
            headers["content-encoding"] = "gzip"
        return Response(body, headers=headers)

    async def version() -> JSONResponse:
        return JSONResponse({"version": package_version()})

    router.add_api_route("/metrics", metrics, methods=["GET"])
    router.add_api_route("/version", version, methods=["GET"])
    return router


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the header names gzip with a weight above 0 (RFC 9110, section 12.5.3)."""
    for word in accept_encoding.lower().split(","):
        coding, _, weight = word.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return weight.strip("0.") != "" or not weight
    return False
