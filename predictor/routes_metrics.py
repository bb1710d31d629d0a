"""`/metrics` and `/version`."""

from __future__ import annotations

import gzip

from fastapi import APIRouter
from prometheus_client import REGISTRY, CollectorRegistry, exposition
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.metrics import package_version
from engine.metrics_aliases import Aliases
from predictor.metrics_text import render

GZIP_LEVEL = 1
"""A page shrinks to an eighth at this level already."""
OPENMETRICS = "application/openmetrics-text"


def build_router(registry: CollectorRegistry, aliases: Aliases | None = None) -> APIRouter:
    """`registry`'s metrics, under `aliases` too, then the process-wide registry's: the process, KServe, a model's own.

    The format follows Accept (Prometheus text, or OpenMetrics), gzip follows Accept-Encoding.
    """
    router = APIRouter(default_response_class=JSONResponse)

    async def metrics(request: Request) -> Response:
        encode, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
        # NOTE: one page is one collection on the event loop, on which the metrics are fed: no value changes halfway
        # down it, and an alias has the very value of its source.
        own = list(registry.collect())
        if aliases is not None:
            own += aliases(own)
        body = render(own, openmetrics=content_type.startswith(OPENMETRICS)).encode() + encode(REGISTRY)
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
