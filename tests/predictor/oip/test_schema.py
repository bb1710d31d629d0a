"""Our messages against the protocol's own .proto, and against KServe's generated module."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from predictor.oip import schema

PROTO = Path(__file__).parents[4] / "shared" / "oip" / "open_inference_grpc.proto"
EXTRA_MESSAGES = {
    "RepositoryModelLoadRequest",
    "RepositoryModelLoadResponse",
    "RepositoryModelUnloadRequest",
    "RepositoryModelUnloadResponse",
    "ModelStreamInferResponse",
}
EXTRA_METHODS = {"RepositoryModelLoad", "RepositoryModelUnload", "ModelStreamInfer"}


def flatten(messages: Any, prefix: str = "") -> dict[str, dict[str, tuple[Any, ...]]]:
    """Every message, nested ones too, as {field: what goes on the wire}."""
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for message in messages:
        name = f"{prefix}{message.name}"
        found[name] = {
            f.name: (f.number, f.type, f.label, f.type_name, f.oneof_index if f.HasField("oneof_index") else None)
            for f in message.field
        }
        found[name]["<map>"] = (message.options.map_entry,)
        found[name]["<oneofs>"] = tuple(o.name for o in message.oneof_decl)
        found.update(flatten(message.nested_type, f"{name}."))
    return found


def methods(file: Any) -> dict[str, tuple[Any, ...]]:
    (service,) = file.service
    return {m.name: (m.input_type, m.output_type, m.client_streaming, m.server_streaming) for m in service.method}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not PROTO.exists():
        pytest.skip(f"the protocol's file is not at {PROTO}")
    protoc = pytest.importorskip("grpc_tools.protoc")
    out = tmp_path_factory.mktemp("protoc") / "set"
    include = str(files("grpc_tools") / "_proto")
    arguments = ["protoc", f"-I{PROTO.parent}", f"-I{include}", f"--descriptor_set_out={out}", PROTO.name]
    assert protoc.main(arguments) == 0
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    return descriptors.file[0]


def test_every_message_is_the_published_one_field_for_field(published: Any) -> None:
    ours, theirs = flatten(schema.file_descriptor().message_type), flatten(published.message_type)
    assert {name: ours.get(name) for name in theirs} == theirs
    assert set(ours) - set(theirs) == EXTRA_MESSAGES


def test_every_method_is_the_published_one(published: Any) -> None:
    ours, theirs = methods(schema.file_descriptor()), methods(published)
    assert {name: ours.get(name) for name in theirs} == theirs
    assert set(ours) - set(theirs) == EXTRA_METHODS
    assert (published.package, published.service[0].name) == ("inference", "GRPCInferenceService")


def test_the_repository_messages_are_kserves_and_name_the_model_as_triton_does_too() -> None:
    from kserve.protocol.grpc import grpc_predict_v2_pb2

    kserve = descriptor_pb2.FileDescriptorProto()
    grpc_predict_v2_pb2.DESCRIPTOR.CopyToProto(kserve)
    ours, theirs = flatten(schema.file_descriptor().message_type), flatten(kserve.message_type)
    repository = {name for name in theirs if name.startswith("Repository")}
    assert repository == EXTRA_MESSAGES - {"ModelStreamInferResponse"}
    for name in repository:
        triton_field = ours[name].pop("triton_model_name", None)
        assert (triton_field is not None and triton_field[0] == 2) is name.endswith("Request")
        assert ours[name] == theirs[name]


def test_messages_go_over_the_wire() -> None:
    message = schema.ModelInferRequest(model_name="m", id="1")
    message.parameters["temperature"].double_param = 0.5
    message.inputs.add(name="x", datatype="INT64", shape=[2]).contents.int64_contents.extend([1, -2])
    read = schema.ModelInferRequest.FromString(message.SerializeToString())
    assert read == message
    assert read.parameters["temperature"].WhichOneof("parameter_choice") == "double_param"
