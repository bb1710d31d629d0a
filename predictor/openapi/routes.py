"""`/openapi.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from predictor.openapi.document import build_document

if TYPE_CHECKING:
    from predictor.service import GenerationService


def build_router(service: GenerationService) -> APIRouter:
    """The document of this server, built once."""
    content = orjson.dumps(build_document(service.model_name, service.aliases))
    router = APIRouter()

    async def openapi() -> Response:
        return Response(content, media_type="application/json")

    router.add_api_route("/openapi.json", openapi, methods=["GET"], response_class=Response)
    return router
