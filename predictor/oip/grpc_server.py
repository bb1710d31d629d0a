"""Our own `grpc.aio` server: OIP's `inference.GRPCInferenceService`, `grpc.health.v1.Health` and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from engine.errors import ConfigError
from predictor.bodies import run_sized
from predictor.oip.codec_grpc import decode_request, encode_response
from predictor.oip.errors import UnsupportedOperationError
from predictor.oip.grpc_calls import Context, Unary, call_headers, stream_method, unary_method
from predictor.oip.grpc_health import health_services
from predictor.oip.grpc_reflection import reflection_services
from predictor.oip.infer import call_model
from predictor.oip.metadata import check_model, model_metadata, no_repository, server_metadata
from predictor.oip.schema import METHODS, SERVICE, ModelStreamInferResponse, message_class
from predictor.oip.stream import answer_stream

if TYPE_CHECKING:
    from predictor.model import PagedModel
    from predictor.service import GenerationService

DEFAULT_MAX_MESSAGE_BYTES = 8 * 2**20
"""KServe's default for both directions."""

# NOTE: a long call is silent while its prompt waits, and proxies close silent connections: both sides may ping. By
# gRPC's own defaults a client that pings more than every 5 minutes has its connection closed.
KEEP_ALIVE_OPTIONS = (
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A client may ping every 5 s (most libraries allow it 10 s at the least), the server does so every minute, and a
connection whose ping is not answered within 20 s is closed. No connection is closed for its age."""


class GrpcServer:
    """Serves until `stop`. Construct and use it on one running event loop.

    port: 0 takes a free one; `port` tells which after `start`. max_message_length: bytes of one message, in and
    out; a longer one is refused with RESOURCE_EXHAUSTED. credentials: those of TLS; without them nothing is encrypted.
    interceptors: see every call before its method does.
    """

    def __init__(
        self,
        service: GenerationService,
        model: PagedModel,
        port: int,
        *,
        host: str = "[::]",
        max_message_length: int = DEFAULT_MAX_MESSAGE_BYTES,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self.port = port
        self._host = host
        self._options = [
            ("grpc.max_receive_message_length", max_message_length),
            ("grpc.max_send_message_length", max_message_length),
            # NOTE: without it a second server on the port would take part of its connections unnoticed.
            ("grpc.so_reuseport", 0),
            *KEEP_ALIVE_OPTIONS,
        ]
        self._credentials = credentials
        self._interceptors = interceptors
        self._service = service
        self._methods = _Methods(service, model)
        self._closing = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Opens the port. Raises `ConfigError` where it cannot be had."""
        server = grpc.aio.server(options=self._options, interceptors=self._interceptors)
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, handlers) for name, handlers in self.services().items())
        )
        address = f"{self._host}:{self.port}"
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen for gRPC on {address}: {error}; choose another --grpc_port") from error
        await server.start()
        self._server = server

    async def stop(self, grace: float | None = None) -> None:
        """Takes no new calls; running ones get `grace` seconds, then they are cancelled. Idempotent.

        Streams that only wait for their client, health watches among them, end at once.
        """
        self._closing.set()
        if self._server is not None:
            await self._server.stop(grace)

    def services(self) -> dict[str, dict[str, grpc.RpcMethodHandler]]:
        """Every method that is served, by service and name."""
        return {
            SERVICE: self._handlers(),
            **health_services(self._service, self._closing),
            **reflection_services(self._closing),
        }

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        calls: dict[str, Unary] = {
            "ServerLive": self._methods.server_live,
            "ServerReady": self._methods.server_ready,
            "ModelReady": self._methods.model_ready,
            "ServerMetadata": self._methods.server_metadata,
            "ModelMetadata": self._methods.model_metadata,
            "ModelInfer": self._methods.model_infer,
            "RepositoryModelLoad": self._methods.repository_load,
            "RepositoryModelUnload": self._methods.repository_unload,
        }
        handlers = {
            name: unary_method(message_class(METHODS[name].request), message_class(METHODS[name].response), call)
            for name, call in calls.items()
        }
        handlers["ModelStreamInfer"] = stream_method(
            ModelStreamInferResponse, self._methods.model_stream_infer, self._closing
        )
        return handlers


class _Methods:
    def __init__(self, service: GenerationService, model: PagedModel) -> None:
        self._service = service
        self._model = model

    async def server_live(self, _request: Any, _context: Context) -> Any:
        return message_class("ServerLiveResponse")(live=self._service.is_live)

    async def server_ready(self, _request: Any, _context: Context) -> Any:
        return message_class("ServerReadyResponse")(ready=self._service.is_ready)

    async def model_ready(self, request: Any, _context: Context) -> Any:
        check_model(self._service, request.name, request.version)
        return message_class("ModelReadyResponse")(ready=bool(await self._model.healthy()))

    async def server_metadata(self, _request: Any, _context: Context) -> Any:
        return message_class("ServerMetadataResponse")(**server_metadata())

    async def model_metadata(self, request: Any, _context: Context) -> Any:
        check_model(self._service, request.name, request.version)
        return message_class("ModelMetadataResponse")(**model_metadata(self._service))

    async def model_infer(self, request: Any, context: Context) -> Any:
        check_model(self._service, request.model_name, request.model_version)
        decoded = await run_sized(request.ByteSize(), partial(decode_request, request))
        return encode_response(await call_model(self._model, decoded, call_headers(context)), decoded)

    async def model_stream_infer(self, requests: AsyncIterator[bytes], context: Context) -> None:
        await answer_stream(self._service, self._model, requests, context.write, call_headers(context))

    async def repository_load(self, request: Any, _context: Context) -> Any:
        check_model(self._service, request.triton_model_name or request.model_name, None)
        raise UnsupportedOperationError(no_repository("load"))

    async def repository_unload(self, request: Any, _context: Context) -> Any:
        check_model(self._service, request.triton_model_name or request.model_name, None)
        raise UnsupportedOperationError(no_repository("unload"))
