"""OIP's two doors over the scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI

from predictor.admission import Admission
from predictor.http_errors import add_exception_handlers
from predictor.kserve_adapter import InferOutput, InferRequest, InferResponse
from predictor.model import PagedModel
from predictor.oip.grpc_server import GrpcServer
from predictor.oip.rest import build_router
from predictor.oip.schema import METHODS, SERVICE, message_class
from predictor.service import GenerationService
from tests.fake_engine import FakeEngine

HEADER = "Inference-Header-Content-Length"


ABORT_SECONDS = 5 * 1.0
"""Five times what is promised."""


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Lets the event loop run until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  the scripted engine has no event for its counts
            await asyncio.sleep(0.001)


def text_request(*prompts: str, **more: Any) -> dict[str, Any]:
    tensor = {"name": "text_input", "shape": [len(prompts)], "datatype": "BYTES", "data": list(prompts)}
    return {"inputs": [tensor], **more}


def outputs_of(body: dict[str, Any]) -> dict[str, Any]:
    return {output["name"]: output["data"] for output in body["outputs"]}


class GrpcClient:
    """Calls by method name, with messages of our own schema."""

    def __init__(self, port: int) -> None:
        self.target = f"127.0.0.1:{port}"
        self.channel = grpc.aio.insecure_channel(
            self.target, options=[("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]
        )

    def call(self, name: str, request: Any = None, **kwargs: Any) -> Any:
        """A unary call; `request` may be bytes, to send what no message class would."""
        message = message_class(METHODS[name].request)() if request is None else request
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=message_class(METHODS[name].response).FromString,
        )
        return method(message, **kwargs)

    def stream(self, requests: Any = None, **kwargs: Any) -> Any:
        method = self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=message_class("ModelStreamInferResponse").FromString,
        )
        return method(requests, **kwargs)

    async def refusal(self, name: str, request: Any = None) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(name, request)
        return caught.value


class Shouting(PagedModel):
    """A custom predictor: prompts are rewritten before, texts after."""

    async def preprocess(self, payload: InferRequest, headers: Any = None) -> InferRequest:
        (text,) = payload.get_input_by_name("text_input").as_string()
        assert payload.get_input_by_name("text_input").as_numpy().tolist() == [text.encode()]
        payload.inputs[0].data = [text + headers["x-suffix"]]
        return payload

    async def postprocess(self, result: InferResponse, headers: Any = None, response_headers: Any = None) -> Any:
        text = result.get_output_by_name("text_output").as_numpy()[0]
        result.outputs = [InferOutput("text_output", [1], "BYTES", [text.upper()])]
        return result


@dataclass
class Server:
    engine: Any
    service: GenerationService
    model: PagedModel
    app: FastAPI
    http: httpx.AsyncClient
    grpc: GrpcClient
    grpc_server: GrpcServer

    async def infer(self, body: Any, path: str = "/v2/models/model/infer", **kwargs: Any) -> httpx.Response:
        if isinstance(body, bytes):
            return await self.http.post(path, content=body, **kwargs)
        return await self.http.post(path, json=body, **kwargs)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """await serve(engine, max_waiting_requests=..., model_class=..., max_message_length=...)"""
    running: list[tuple[Server, GrpcServer]] = []

    async def start(
        engine: Any = None,
        *,
        max_waiting_requests: int = 512,
        max_body_size: int = 2**20,
        model_class: type[PagedModel] = PagedModel,
        **grpc_options: Any,
    ) -> Server:
        engine = engine or FakeEngine()
        admission = Admission(engine, max_waiting_requests=max_waiting_requests, max_waiting_tokens=None)
        service = GenerationService(
            engine, admission, model_name="model", aliases=("org/alias",), max_body_size=max_body_size
        )
        model = model_class(service)
        app = FastAPI()
        app.include_router(build_router(service, model))
        add_exception_handlers(app)
        grpc_server = GrpcServer(service, model, 0, host="127.0.0.1", **grpc_options)
        await grpc_server.start()
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")
        server = Server(engine, service, model, app, http, GrpcClient(grpc_server.port), grpc_server)
        running.append((server, grpc_server))
        return server

    yield start
    for server, grpc_server in running:
        await server.grpc.channel.close()
        await server.http.aclose()
        await grpc_server.stop(0)


@pytest.fixture
async def server(serve: Callable[..., Any]) -> Server:
    return await serve()
