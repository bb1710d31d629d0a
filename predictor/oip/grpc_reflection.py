"""gRPC server reflection, v1 and v1alpha, over our private descriptor pool: grpcurl and friends need no .proto file.

Source: grpc/reflection/v1/reflection.proto of the gRPC project; v1alpha is the same under another package name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf import descriptor_pb2

from predictor.oip.grpc_calls import Context, parse_message, stream_method
from predictor.oip.grpc_health import HEALTH
from predictor.oip.proto_files import Method, build_file
from predictor.oip.schema import POOL, SERVICE, message_class

VERSIONS = ("v1", "v1alpha")
_MESSAGES = {
    "ServerReflectionRequest": (
        "string host = 1",
        "oneof message_request string file_by_filename = 3",
        "oneof message_request string file_containing_symbol = 4",
        "oneof message_request ExtensionRequest file_containing_extension = 5",
        "oneof message_request string all_extension_numbers_of_type = 6",
        "oneof message_request string list_services = 7",
    ),
    "ExtensionRequest": ("string containing_type = 1", "int32 extension_number = 2"),
    "ServerReflectionResponse": (
        "string valid_host = 1",
        "ServerReflectionRequest original_request = 2",
        "oneof message_response FileDescriptorResponse file_descriptor_response = 4",
        "oneof message_response ExtensionNumberResponse all_extension_numbers_response = 5",
        "oneof message_response ListServiceResponse list_services_response = 6",
        "oneof message_response ErrorResponse error_response = 7",
    ),
    "FileDescriptorResponse": ("repeated bytes file_descriptor_proto = 1",),
    "ExtensionNumberResponse": ("string base_type_name = 1", "repeated int32 extension_number = 2"),
    "ListServiceResponse": ("repeated ServiceResponse service = 1",),
    "ServiceResponse": ("string name = 1",),
    "ErrorResponse": ("int32 error_code = 1", "string error_message = 2"),
}


def file_descriptor(version: str) -> Any:
    """The `FileDescriptorProto` of a version of the reflection service."""
    info = Method("ServerReflectionRequest", "ServerReflectionResponse", is_client_stream=True, is_server_stream=True)
    return build_file(
        f"grpc/reflection/{version}/reflection.proto",
        _package(version),
        _MESSAGES,
        {"ServerReflection": {"ServerReflectionInfo": info}},
    )


def _package(version: str) -> str:
    return f"grpc.reflection.{version}"


for _version in VERSIONS:
    POOL.Add(file_descriptor(_version))

SERVICE_NAMES = (HEALTH, *(f"{_package(version)}.ServerReflection" for version in VERSIONS), SERVICE)
"""Every service of the gRPC server."""


def reflection_services(closing: asyncio.Event) -> dict[str, dict[str, grpc.RpcMethodHandler]]:
    """Handlers by service and method name, for both versions. Their streams end when `closing` is set."""
    return {
        f"{_package(version)}.ServerReflection": {"ServerReflectionInfo": _info_method(_package(version), closing)}
        for version in VERSIONS
    }


def _info_method(package: str, closing: asyncio.Event) -> grpc.RpcMethodHandler:
    request_class = message_class("ServerReflectionRequest", package)
    response_class = message_class("ServerReflectionResponse", package)

    async def info(requests: AsyncIterator[bytes], context: Context) -> None:
        async for data in requests:
            request = parse_message(request_class, data)
            response = response_class(valid_host=request.host, original_request=request)
            _answer(request, response)
            await context.write(response)

    return stream_method(response_class, info, closing)


def _answer(request: Any, response: Any) -> None:
    """Fills one response. What is not there is told in it, and the stream goes on."""
    kind = request.WhichOneof("message_request")
    try:
        match kind:
            case "list_services":
                for name in SERVICE_NAMES:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                _add_file(response, POOL.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                _add_file(response, _file_of(request.file_containing_symbol))
            case "all_extension_numbers_of_type":
                # NOTE: proto3 messages have no extensions; a known type has none, an unknown one is an error.
                found = POOL.FindMessageTypeByName(request.all_extension_numbers_of_type)
                response.all_extension_numbers_response.base_type_name = found.full_name
            case "file_containing_extension":
                _refuse(response, grpc.StatusCode.NOT_FOUND, "no message here has extensions")
            case _:
                _refuse(response, grpc.StatusCode.INVALID_ARGUMENT, "the request asks for nothing")
    except KeyError:
        _refuse(response, grpc.StatusCode.NOT_FOUND, f"not found: {getattr(request, kind)}")


def _file_of(symbol: str) -> Any:
    """The file that declares a message, service or method. Raises `KeyError`."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        # NOTE: the pool does not count a service's methods among its symbols; the protocol does.
        owner, _, method = symbol.rpartition(".")
        return POOL.FindServiceByName(owner).methods_by_name[method].containing_service.file


def _add_file(response: Any, file: Any) -> None:
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    response.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())


def _refuse(response: Any, code: grpc.StatusCode, message: str) -> None:
    response.error_response.error_code = code.value[0]
    response.error_response.error_message = message
