"""`/metrics` and `/version`."""

from __future__ import annotations

import gzip

from fastapi import APIRouter
from prometheus_client import REGISTRY, CollectorRegistry, exposition
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.metrics import package_version
from engine.metrics_aliases import Aliases
from predictor.metrics_text import render

GZIP_LEVEL = 1
"""A page shrinks to an eighth at this level already."""
OPENMETRICS, OPENMETRICS_VERSION = "application/openmetrics-text", "1.0.0"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version={OPENMETRICS_VERSION}; charset=utf-8"


def build_router(registry: CollectorRegistry, aliases: Aliases | None = None) -> APIRouter:
    """`registry`'s metrics, under `aliases` too, then the process-wide registry's: the process, KServe, a model's own.

    The format follows Accept (Prometheus text, or OpenMetrics), gzip follows Accept-Encoding.
    """
    router = APIRouter(default_response_class=JSONResponse)

    async def metrics(request: Request) -> Response:
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        # NOTE: one page is one collection on the event loop, on which the metrics are fed: no value changes halfway
        # down it, and an alias has the very value of its source.
        own = list(registry.collect())
        if aliases is not None:
            own += aliases(own)
        if openmetrics:
            shared = openmetrics_exposition.generate_latest(REGISTRY)  # type: ignore[no-untyped-call]
            content_type = OPENMETRICS_TYPE
        else:
            shared, content_type = exposition.generate_latest(REGISTRY), exposition.CONTENT_TYPE_PLAIN_0_0_4
        body = render(own, openmetrics=openmetrics).encode() + shared
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


def wants_openmetrics(accept: str) -> bool:
    """Whether the header has OpenMetrics 1.0.0 with no less weight than Prometheus' text (RFC 9110, section 12.5.1).

    Without a version it stands for that one; what is malformed counts as not said.
    """
    weights: dict[str, float] = {}
    for entry in accept.lower().replace(" ", "").split(","):
        media, *words = entry.split(";")
        given = {name: value.strip('"') for name, _, value in (word.partition("=") for word in words)}
        if media != OPENMETRICS or given.get("version", OPENMETRICS_VERSION) == OPENMETRICS_VERSION:
            weights[media] = max(weights.get(media, 0.0), _weight(given.get("q", "1")))
    text = next((weights[media] for media in ("text/plain", "text/*", "*/*") if media in weights), 0.0)
    return weights.get(OPENMETRICS, 0.0) >= max(text, 0.001)  # NOTE: the least weight that is not 0


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the header names gzip with a weight above 0 (RFC 9110, section 12.5.3)."""
    for word in accept_encoding.lower().split(","):
        coding, _, weight = word.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return weight.strip("0.") != "" or not weight
    return False
