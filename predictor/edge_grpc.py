"""The edge of gRPC: each call, and each message of `ModelStreamInfer`, gets its context; answers tell its id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import grpc

from predictor.oip.errors import grpc_status_of
from predictor.request_context import (
    CARRIED,
    REQUEST_ID,
    RequestContext,
    RequestEdge,
    current_request,
    identity_of,
    note_error,
    trace_id_of,
)

SERVICE_PREFIX = "inference.GRPCInferenceService/"
QUIET_METHODS = frozenset(f"{SERVICE_PREFIX}{name}" for name in ("ServerLive", "ServerReady", "ModelReady"))
"""Asked by probes: neither logged nor traced, as health and reflection are."""
QUIET_PREFIXES = ("grpc.health.", "grpc.reflection.")
STREAM_OF_REQUESTS = f"{SERVICE_PREFIX}ModelStreamInfer"
"""Each of its messages is a request; the call itself is one only if it fails before any."""


_CODE_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class GrpcEdge(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The first interceptor of every call, also of a method that does not exist."""

    def __init__(self, edge: RequestEdge) -> None:
        self._edge = edge

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        request = self._open(handler_call_details)
        handler = await continuation(handler_call_details)
        if handler is None:
            request.route = None
            return grpc.stream_stream_rpc_method_handler(self._wrapped_stream(request, _unknown_method))
        options = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._wrapped_unary(request, handler.unary_unary), **options)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._wrapped_stream(request, handler.unary_stream), **options)
        assert handler.stream_stream is not None, "no method here takes a stream and answers once"
        return grpc.stream_stream_rpc_method_handler(self._wrapped_stream(request, handler.stream_stream), **options)

    def _open(self, details: grpc.HandlerCallDetails) -> RequestContext:
        request_id, trace_headers = identity_of(
            (name, value)
            for name, value in details.invocation_metadata or ()
            if name in CARRIED and isinstance(value, str)
        )
        method = details.method.removeprefix("/")
        return RequestContext(
            request_id,
            "grpc",
            method,
            self._edge,
            route=method,
            is_quiet=method in QUIET_METHODS or method.startswith(QUIET_PREFIXES),
            trace_headers=trace_headers,
            trace_id=trace_id_of(trace_headers),
        )

    def _wrapped_unary(self, request: RequestContext, call: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def handle(message: Any, context: grpc.aio.ServicerContext) -> Any:
            with self._handling(request, context):
                return await call(message, context)

        return handle

    def _wrapped_stream(self, request: RequestContext, call: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
        async def handle(messages: Any, context: grpc.aio.ServicerContext) -> None:
            with self._handling(request, context):
                if request.route == STREAM_OF_REQUESTS:
                    # NOTE: the trailing metadata comes with the end, which may be far.
                    await context.send_initial_metadata(((REQUEST_ID, request.request_id),))
                await call(messages, context)

        return handle

    @contextmanager
    def _handling(self, request: RequestContext, context: grpc.aio.ServicerContext) -> Iterator[None]:
        request.client = _address(context.peer())
        context.set_trailing_metadata(((REQUEST_ID, request.request_id),))
        with self._edge.handling(request):
            try:
                yield
                request.status = grpc.StatusCode.OK.name
            except asyncio.CancelledError:
                request.status = grpc.StatusCode.CANCELLED.name
                raise
            except grpc.aio.AbortError:
                request.status = _CODE_NAMES[_number(context.code())]
                raise
            except Exception as error:
                note_error(error)
                request.status = grpc.StatusCode.UNKNOWN.name
                raise
            finally:
                if request.num_children:
                    request.is_quiet = True


@contextmanager
def message_of_stream() -> Iterator[None]:
    """One message of the current call, a request of its own. What escapes it says that the client has left."""
    call = current_request()
    if call is None:
        yield
        return
    request = call.child()
    with request.edge.handling(request):
        try:
            yield
        except BaseException:
            request.is_aborted = True
            raise
        finally:
            code = grpc.StatusCode.OK
            if request.is_aborted:
                code = grpc.StatusCode.CANCELLED
            elif request.error is not None:
                code = grpc_status_of(request.error.kind)
            request.status = code.name


def _address(peer: str) -> str:
    """Address and port of gRPC's `ipv4:1.2.3.4:5` or `ipv6:%5B::1%5D:5`; other kinds as they are."""
    kind, _, address = peer.partition(":")
    return unquote(address) if kind in ("ipv4", "ipv6") else peer


def _number(code: Any) -> int:
    # NOTE: grpc.aio tells the number, though its documentation says the enumeration's member.
    return int(code.value[0] if isinstance(code, grpc.StatusCode) else code)


async def _unknown_method(_requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
