"""Server reflection, read by the official client and by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from predictor.oip import grpc_reflection
from predictor.oip.schema import SERVICE, file_descriptor, message_class
from tests.predictor.oip.conftest import Server
from tests.predictor.oip.test_schema import flatten, methods


async def ask(server: Server, version: str, *requests: dict[str, Any]) -> list[Any]:
    package = f"grpc.reflection.{version}"
    request_class = message_class("ServerReflectionRequest", package)

    async def messages() -> AsyncIterator[bytes]:
        for request in requests:
            yield request_class(**request).SerializeToString()

    call = server.grpc.channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        response_deserializer=message_class("ServerReflectionResponse", package).FromString,
    )
    return [response async for response in call(messages())]


def test_the_messages_are_the_published_ones() -> None:
    reflection_pb2 = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")
    published = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(published)
    ours = grpc_reflection.file_descriptor("v1alpha")
    assert flatten(ours.message_type) == flatten(published.message_type)
    assert methods(ours) == methods(published)


async def test_the_official_client_rebuilds_our_service(server: Server) -> None:
    database = pytest.importorskip(
        "grpc_reflection.v1alpha.proto_reflection_descriptor_database", reason="grpcio-reflection is not installed"
    )

    def read() -> tuple[list[str], list[str], list[str]]:
        with grpc.insecure_channel(server.grpc.target) as channel:
            descriptors = database.ProtoReflectionDescriptorDatabase(channel)
            pool = descriptor_pool.DescriptorPool(descriptors)
            service = pool.FindServiceByName(SERVICE)
            fields = pool.FindMessageTypeByName("inference.ModelInferRequest").fields
            return list(descriptors.get_services()), [m.name for m in service.methods], [f.name for f in fields]

    services, names, fields = await asyncio.to_thread(read)
    assert set(services) == set(grpc_reflection.SERVICE_NAMES)
    assert {"ModelInfer", "ModelStreamInfer", "ServerLive"} <= set(names)
    assert "raw_input_contents" in fields


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_every_listed_service_can_be_looked_up(server: Server, version: str) -> None:
    (listed,) = await ask(server, version, {"list_services": "*", "host": "h"})
    assert listed.valid_host == "h"
    assert listed.original_request.list_services == "*"
    names = [service.name for service in listed.list_services_response.service]
    assert SERVICE in names
    assert "grpc.health.v1.Health" in names
    answers = await ask(server, version, *({"file_containing_symbol": name} for name in names))
    for name, answer in zip(names, answers, strict=True):
        (data,) = answer.file_descriptor_response.file_descriptor_proto
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        assert name in [f"{file.package}.{service.name}" for service in file.service]


async def test_files_symbols_and_what_is_not_there(server: Server) -> None:
    file, method, extensions, *missing = await ask(
        server,
        "v1",
        {"file_by_filename": file_descriptor().name},
        {"file_containing_symbol": f"{SERVICE}.ModelInfer"},
        {"all_extension_numbers_of_type": "inference.ModelInferRequest"},
        {"file_by_filename": "no.proto"},
        {"file_containing_symbol": "no.Symbol"},
        {"all_extension_numbers_of_type": "no.Message"},
        {"file_containing_extension": {"containing_type": "inference.ModelInferRequest", "extension_number": 1}},
    )
    for answer in (file, method):
        (data,) = answer.file_descriptor_response.file_descriptor_proto
        read = descriptor_pb2.FileDescriptorProto.FromString(data)
        assert flatten(read.message_type) == flatten(file_descriptor().message_type)
    assert extensions.all_extension_numbers_response.base_type_name == "inference.ModelInferRequest"
    assert [answer.error_response.error_code for answer in missing] == [grpc.StatusCode.NOT_FOUND.value[0]] * 4
    (nothing,) = await ask(server, "v1", {})
    assert nothing.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
