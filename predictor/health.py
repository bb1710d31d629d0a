"""Truthful health: `/`, `/health`, `/v2/health/live`, `/v2/health/ready`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse

from predictor.service import GenerationService


def build_router(service: GenerationService) -> APIRouter:
    """Bodies are {"live": bool} and {"ready": bool, "live": bool}, with 200 when true and 503 when not.

    The ready body has `live` too because inference_rest.md ("Server Ready Response JSON Object") shows that member
    only, while KServe's client reads `ready`. While the model loads it carries `progress` {"phase", "done", "total"}.
    """
    router = APIRouter(default_response_class=JSONResponse)

    async def alive() -> JSONResponse:
        live = service.is_live
        return _answer(live, {"status": "alive" if live else "dead"})

    async def live() -> JSONResponse:
        live = service.is_live
        return _answer(live, {"live": live})

    async def ready() -> JSONResponse:
        return _answer(service.is_ready, readiness(service))

    router.add_api_route("/", alive, methods=["GET"])
    router.add_api_route("/v2/health/live", live, methods=["GET"])
    router.add_api_route("/v2/health/ready", ready, methods=["GET"])
    router.add_api_route("/health", ready, methods=["GET"])
    return router


def readiness(service: GenerationService) -> dict[str, Any]:
    """The body of the ready route."""
    body: dict[str, Any] = {"ready": service.is_ready, "live": service.is_live}
    progress = service.engine.progress
    if service.engine.phase == "loading" and progress is not None:
        body["progress"] = {"phase": progress.phase, "done": progress.done, "total": progress.total}
    return body


def _answer(healthy: bool, body: dict[str, Any]) -> JSONResponse:
    return JSONResponse(body, HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE)
