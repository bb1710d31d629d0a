"""The gRPC messages and methods of `inference.GRPCInferenceService`, built in code.

Source: open_inference_grpc.proto of the Open Inference Protocol, KServe's two repository RPCs, and Triton's
`ModelStreamInfer`. The descriptors live in a private pool: the generated modules of the protocol, of KServe and of
Triton's client all claim the same file and message names in the default pool, and only one of them can be there.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory

from predictor.oip.proto_files import Method, build_file

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
FILE_NAME = "pagedserve/open_inference_grpc.proto"

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
    # NOTE: Triton's clients put the model's name into field 2 of the same RPCs, after a repository's name.
    "RepositoryModelLoadRequest": ("string model_name = 1", "string triton_model_name = 2"),
    "RepositoryModelLoadResponse": ("string model_name = 1", "bool isLoaded = 2"),
    "RepositoryModelUnloadRequest": ("string model_name = 1", "string triton_model_name = 2"),
    "RepositoryModelUnloadResponse": ("string model_name = 1", "bool isUnloaded = 2"),
    # Triton's stream.
    "ModelStreamInferResponse": ("string error_message = 1", "ModelInferResponse infer_response = 2"),
}


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
    "ModelStreamInfer": Method(
        "ModelInferRequest", "ModelStreamInferResponse", is_client_stream=True, is_server_stream=True
    ),
}


def file_descriptor() -> Any:
    """The `FileDescriptorProto` of the service."""
    return build_file(FILE_NAME, PACKAGE, _MESSAGES, {"GRPCInferenceService": METHODS})


def message_class(name: str, package: str = PACKAGE) -> Any:
    """The class of a message of a package in the private pool."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{package}.{name}"))


POOL = descriptor_pool.DescriptorPool()
POOL.Add(file_descriptor())

ModelInferRequest = message_class("ModelInferRequest")
ModelInferResponse = message_class("ModelInferResponse")
ModelStreamInferResponse = message_class("ModelStreamInferResponse")
