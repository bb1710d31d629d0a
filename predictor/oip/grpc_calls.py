"""What every gRPC method here shares: messages from bytes, errors to statuses, the call's metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from engine.errors import EngineDrainingError, OverloadedError
from predictor.error_headers import retry_after
from predictor.oip.errors import MalformedRequestError, grpc_status, public_message

MAX_DETAIL_BYTES = 4096
"""Details travel in an HTTP/2 trailer, percent-encoded, whose size clients bound."""

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


def stream_method(response_class: Any, call: BothStream, closing: asyncio.Event) -> grpc.RpcMethodHandler:
    """A stream in both directions; `call` reads the requests' bytes and writes the responses to the context.

    Once `closing` is set no more requests are read; what has been read is answered, and the call ends UNAVAILABLE.
    """

    async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
        reader = _UntilClosing(requests, closing)
        try:
            await call(reader, context)
        except Exception as error:
            await _abort(context, error)
        if reader.is_cut:
            await _abort(context, shutting_down())

    return grpc.stream_stream_rpc_method_handler(
        handle, request_deserializer=None, response_serializer=response_class.SerializeToString
    )


def shutting_down() -> EngineDrainingError:
    """What ends a call that would otherwise stay open for as long as its client likes."""
    return EngineDrainingError("the server is shutting down; go on with another replica")


class _UntilClosing:
    """The requests of a stream, up to the server's end."""

    def __init__(self, requests: AsyncIterator[bytes], closing: asyncio.Event) -> None:
        self.is_cut = False
        self._requests = requests
        self._closing = closing

    def __aiter__(self) -> _UntilClosing:
        return self

    async def __anext__(self) -> bytes:
        read = asyncio.ensure_future(anext(self._requests))
        closed = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((read, closed), return_when=asyncio.FIRST_COMPLETED)
            if read.done():
                return read.result()
            self.is_cut = True
            raise StopAsyncIteration
        finally:
            read.cancel()
            closed.cancel()


def call_headers(context: Context) -> dict[str, str]:
    """The call's metadata as HTTP-like headers; binary entries are left out."""
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


async def _abort(context: Context, error: Exception) -> None:
    metadata = list(context.trailing_metadata() or ())
    if (seconds := retry_after(error)) is not None:
        metadata.append(("retry-after", str(seconds)))
        if isinstance(error, OverloadedError):
            # NOTE: gRPC's own name for it (gRFC A6): clients that retry by themselves wait that long.
            metadata.append(("grpc-retry-pushback-ms", str(1000 * seconds)))
    context.set_trailing_metadata(tuple(metadata))
    await context.abort(grpc_status(error), _details(public_message(error)))


def _details(message: str) -> str:
    """The message, cut where its percent-encoded form (gRPC's "Status-Message") would be too long."""
    size = 0
    for index, character in enumerate(message):
        is_plain = " " <= character <= "~" and character != "%"
        size += 1 if is_plain else 3 * len(character.encode("utf-8", "replace"))
        if size > MAX_DETAIL_BYTES:
            return message[:index]
    return message
