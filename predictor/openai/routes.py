"""The routes of OpenAI's API.

NOTE: every error is answered here, in OpenAI's shape: nothing is left to the application's handlers, which KServe
replaces by its own when it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from engine.errors import PagedServeError
from predictor.disconnect import CLIENT_CLOSED_REQUEST, ClientDisconnectedError
from predictor.openai.chat import create_chat_completion
from predictor.openai.completions import create_completion
from predictor.openai.errors import error_response
from predictor.openai.models import model_card, model_list

if TYPE_CHECKING:
    from predictor.service import GenerationService

logger = logging.getLogger(__name__)

PREFIXES = ("/v1", "/openai/v1")
"""OpenAI's own prefix, and the one KServe gives it."""

Handler = Callable[["GenerationService", Request], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def build_router(service: GenerationService) -> APIRouter:
    """Routes of completions, chat completions and, under `/openai/v1`, models.

    `/v1/models` is answered elsewhere, as it serves KServe's V1 protocol too.
    """
    router = APIRouter()
    for prefix in PREFIXES:
        router.add_route(f"{prefix}/completions", _endpoint(service, create_completion), methods=["POST"])
        router.add_route(f"{prefix}/chat/completions", _endpoint(service, create_chat_completion), methods=["POST"])
    router.add_route("/openai/v1/models", _endpoint(service, _list_models), methods=["GET"])
    router.add_route("/openai/v1/models/{name:path}", _endpoint(service, _get_model), methods=["GET"])
    return router


async def _list_models(service: GenerationService, http: Request) -> Response:
    return Response(msgspec.json.encode(model_list(service)), media_type="application/json")


async def _get_model(service: GenerationService, http: Request) -> Response:
    card = model_card(service, http.path_params["name"])
    return Response(msgspec.json.encode(card), media_type="application/json")


def _endpoint(service: GenerationService, handler: Handler) -> Endpoint:
    async def endpoint(http: Request) -> Response:
        try:
            return await handler(service, http)
        except (ClientDisconnect, ClientDisconnectedError):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except PagedServeError as error:
            return error_response(error)
        except Exception as error:
            logger.exception("%s failed", http.url.path)
            return error_response(error)

    return endpoint
