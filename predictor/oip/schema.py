"""The gRPC messages and methods of `inference.GRPCInferenceService`, built in code.

Source: open_inference_grpc.proto of the Open Inference Protocol, KServe's two repository RPCs, and Triton's
`ModelStreamInfer`. The descriptors live in a private pool: the generated modules of the protocol, of KServe and of
Triton's client all claim the same file and message names in the default pool, and only one of them can be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from predictor.oip.errors import MalformedRequestError

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
FILE_NAME = "pagedserve/open_inference_grpc.proto"

Field = descriptor_pb2.FieldDescriptorProto

# NOTE: "kind name = number" as in a .proto file, where kind is a scalar, a message, "repeated X", or "map X" for
# map<string, X>; "oneof group kind" puts a field into a oneof. A dotted message name is a nested message.
_NAME_AND_VERSION = ("string name = 1", "string version = 2")
_TENSOR = ("string name = 1", "string datatype = 2", "repeated int64 shape = 3")
_DATA = ("map InferParameter parameters = 4", "InferTensorContents contents = 5")
_MESSAGES: dict[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("bool live = 1",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("bool ready = 1",),
    "ModelReadyRequest": _NAME_AND_VERSION,
    "ModelReadyResponse": ("bool ready = 1",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (*_NAME_AND_VERSION, "repeated string extensions = 3"),
    "ModelMetadataRequest": _NAME_AND_VERSION,
    "ModelMetadataResponse": (
        "string name = 1",
        "repeated string versions = 2",
        "string platform = 3",
        "repeated ModelMetadataResponse.TensorMetadata inputs = 4",
        "repeated ModelMetadataResponse.TensorMetadata outputs = 5",
        "map string properties = 6",
    ),
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "ModelInferRequest": (
        "string model_name = 1",
        "string model_version = 2",
        "string id = 3",
        "map InferParameter parameters = 4",
        "repeated ModelInferRequest.InferInputTensor inputs = 5",
        "repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6",
        "repeated bytes raw_input_contents = 7",
    ),
    "ModelInferRequest.InferInputTensor": (*_TENSOR, *_DATA),
    "ModelInferRequest.InferRequestedOutputTensor": ("string name = 1", "map InferParameter parameters = 2"),
    "ModelInferResponse": (
        "string model_name = 1",
        "string model_version = 2",
        "string id = 3",
        "map InferParameter parameters = 4",
        "repeated ModelInferResponse.InferOutputTensor outputs = 5",
        "repeated bytes raw_output_contents = 6",
    ),
    "ModelInferResponse.InferOutputTensor": (*_TENSOR, *_DATA),
    "InferParameter": (
        "oneof parameter_choice bool bool_param = 1",
        "oneof parameter_choice int64 int64_param = 2",
        "oneof parameter_choice string string_param = 3",
        "oneof parameter_choice double double_param = 4",
        "oneof parameter_choice uint64 uint64_param = 5",
    ),
    "InferTensorContents": (
        "repeated bool bool_contents = 1",
        "repeated int32 int_contents = 2",
        "repeated int64 int64_contents = 3",
        "repeated uint32 uint_contents = 4",
        "repeated uint64 uint64_contents = 5",
        "repeated float fp32_contents = 6",
        "repeated double fp64_contents = 7",
        "repeated bytes bytes_contents = 8",
    ),
    # KServe's repository extension.
    "RepositoryModelLoadRequest": ("string model_name = 1",),
    "RepositoryModelLoadResponse": ("string model_name = 1", "bool isLoaded = 2"),
    "RepositoryModelUnloadRequest": ("string model_name = 1",),
    "RepositoryModelUnloadResponse": ("string model_name = 1", "bool isUnloaded = 2"),
    # Triton's stream.
    "ModelStreamInferResponse": ("string error_message = 1", "ModelInferResponse infer_response = 2"),
}


@dataclass(frozen=True, slots=True)
class Method:
    """An RPC: the names of its messages, and whether it is a stream in both directions."""

    request: str
    response: str
    is_stream: bool = False


def _unary(name: str) -> Method:
    return Method(f"{name}Request", f"{name}Response")


METHODS: dict[str, Method] = {
    **{
        name: _unary(name)
        for name in (
            "ServerLive",
            "ServerReady",
            "ModelReady",
            "ServerMetadata",
            "ModelMetadata",
            "ModelInfer",
            "RepositoryModelLoad",
            "RepositoryModelUnload",
        )
    },
    "ModelStreamInfer": Method("ModelInferRequest", "ModelStreamInferResponse", is_stream=True),
}


def file_descriptor() -> Any:
    """The `FileDescriptorProto` of the service."""
    file = descriptor_pb2.FileDescriptorProto(name=FILE_NAME, package=PACKAGE, syntax="proto3")
    messages: dict[str, Any] = {}
    for name, fields in _MESSAGES.items():
        outer, _, inner = name.rpartition(".")
        message = messages[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=name)
        messages[name] = message
        for field in fields:
            _add_field(message, name, field)
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for name, method in METHODS.items():
        service.method.add(
            name=name,
            input_type=_type_name(method.request),
            output_type=_type_name(method.response),
            client_streaming=method.is_stream,
            server_streaming=method.is_stream,
        )
    return file


def message_class(name: str) -> Any:
    """The class of a message of the package, from the private pool."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def parse_message(kind: Any, data: bytes) -> Any:
    """A message from its bytes. Raises `MalformedRequestError`.

    NOTE: parsed here and not by grpc's deserializer, whose failure would reach the client as INTERNAL.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise MalformedRequestError(f"the request is not a valid {kind.DESCRIPTOR.name} message: {error}") from None


def _add_field(message: Any, message_name: str, declaration: str) -> None:
    kinds, _, number = declaration.partition(" = ")
    *kind, name = kinds.split()
    label = Field.LABEL_REPEATED if kind[0] in ("repeated", "map") else Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    if kind[0] == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name=kind[1])
        field.oneof_index = 0
    if kind[0] == "map":
        # NOTE: protoc turns map<string, X> into a repeated nested entry message of this name and option.
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _set_type(entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL), "string")
        _set_type(entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL), kind[1])
        _set_type(field, f"{message_name}.{entry.name}")
    else:
        _set_type(field, kind[-1])


def _set_type(field: Any, kind: str) -> None:
    scalar = getattr(Field, f"TYPE_{kind.upper()}", None)
    if scalar is not None:
        field.type = scalar
    else:
        field.type = Field.TYPE_MESSAGE
        field.type_name = _type_name(kind)


def _type_name(message: str) -> str:
    return f".{PACKAGE}.{message}"


POOL = descriptor_pool.DescriptorPool()
POOL.Add(file_descriptor())

ModelInferRequest = message_class("ModelInferRequest")
ModelInferResponse = message_class("ModelInferResponse")
ModelStreamInferResponse = message_class("ModelStreamInferResponse")
