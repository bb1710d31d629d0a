"""What every gRPC method here shares: messages from bytes, errors to statuses, the call's metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from predictor.oip.errors import MalformedRequestError, grpc_status, public_message, retry_after

MAX_DETAIL_CHARACTERS = 1000
"""Details travel in an HTTP/2 trailer, whose size clients bound."""

Context: TypeAlias = grpc.aio.ServicerContext
Unary = Callable[[Any, Context], Awaitable[Any]]
ServerStream = Callable[[Any, Context], Awaitable[None]]
BothStream = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]


def parse_message(kind: Any, data: bytes) -> Any:
    """A message from its bytes. Raises `MalformedRequestError`.

    NOTE: parsed here and not by grpc's deserializer, whose failure would reach the client as INTERNAL.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise MalformedRequestError(f"the request is not a valid {kind.DESCRIPTOR.name} message: {error}") from None


def unary_method(request_class: Any, response_class: Any, call: Unary) -> grpc.RpcMethodHandler:
    """A method with one request and one response. An error of `call` ends it with the status of its class."""

    async def handle(data: bytes, context: Context) -> Any:
        # NOTE: a client that goes away cancels this coroutine; CancelledError is no Exception and passes through.
        try:
            return await call(parse_message(request_class, data), context)
        except Exception as error:
            await _abort(context, error)

    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=None, response_serializer=response_class.SerializeToString
    )


def server_stream_method(request_class: Any, response_class: Any, call: ServerStream) -> grpc.RpcMethodHandler:
    """A method with one request; `call` writes the responses to the context."""

    async def handle(data: bytes, context: Context) -> None:
        try:
            await call(parse_message(request_class, data), context)
        except Exception as error:
            await _abort(context, error)

    return grpc.unary_stream_rpc_method_handler(
        handle, request_deserializer=None, response_serializer=response_class.SerializeToString
    )


def stream_method(response_class: Any, call: BothStream) -> grpc.RpcMethodHandler:
    """A stream in both directions; `call` reads the requests' bytes and writes the responses to the context."""

    async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
        try:
            await call(requests, context)
        except Exception as error:
            await _abort(context, error)

    return grpc.stream_stream_rpc_method_handler(
        handle, request_deserializer=None, response_serializer=response_class.SerializeToString
    )


def call_headers(context: Context) -> dict[str, str]:
    """The call's metadata as HTTP-like headers; binary entries are left out."""
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


async def _abort(context: Context, error: Exception) -> None:
    seconds = retry_after(error)
    if seconds is not None:
        context.set_trailing_metadata((("retry-after", str(seconds)),))
    await context.abort(grpc_status(error), public_message(error)[:MAX_DETAIL_CHARACTERS])
