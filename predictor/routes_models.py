"""`/v1/models…`: answers that satisfy OpenAI's clients and KServe's V1 protocol, and V1's `:predict`."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from engine.brief import brief
from predictor.bodies import read_json
from predictor.disconnect import run_until_disconnect
from predictor.http_errors import NotServedError, NotSupportedError
from predictor.openai.models import model_card, model_list
from predictor.service import GenerationService

if TYPE_CHECKING:
    from predictor.model import PagedModel


def build_router(service: GenerationService, model: PagedModel) -> APIRouter:
    """The model's own name and its aliases, which may hold slashes, are found; `:explain` is answered 501."""
    router = APIRouter(default_response_class=JSONResponse)

    def check(name: str) -> None:
        if not service.serves(name):
            raise NotServedError(f"model {brief(name)} is not served here; this server serves {service.model_name!r}")

    async def models() -> JSONResponse:
        return JSONResponse({**model_list(service), "models": [service.model_name, *service.aliases]})

    async def one(name: str) -> JSONResponse:
        check(name)
        ready = await model.healthy()
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({**model_card(service, name), "name": name, "ready": ready}, status)

    async def predict(name: str, request: Request) -> JSONResponse:
        check(name)
        service.check_available()
        body = await read_json(request, service.max_body_size)
        answer, headers = await run_until_disconnect(request, model(body, headers=dict(request.headers)))
        return JSONResponse(answer, headers=headers)

    async def explain(name: str) -> JSONResponse:
        check(name)
        raise NotSupportedError("this model has no explainer")

    router.add_api_route("/v1/models", models, methods=["GET"])
    router.add_api_route("/v1/models/{name:path}:predict", predict, methods=["POST"])
    router.add_api_route("/v1/models/{name:path}:explain", explain, methods=["POST"])
    router.add_api_route("/v1/models/{name:path}", one, methods=["GET"])
    return router
