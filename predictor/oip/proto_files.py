"""A `.proto` file built in code from a compact table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2

Field = descriptor_pb2.FieldDescriptorProto


@dataclass(frozen=True, slots=True)
class Method:
    """An RPC: the names of its messages, and which sides are streams."""

    request: str
    response: str
    is_client_stream: bool = False
    is_server_stream: bool = False


def build_file(
    name: str,
    package: str,
    messages: Mapping[str, Sequence[str]],
    services: Mapping[str, Mapping[str, Method]],
    enums: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """A proto3 `FileDescriptorProto`.

    messages: name to fields, each "kind name = number" as in a .proto file. A kind is a scalar, a message, an enum,
    "repeated X", "map X" for map<string, X>, or "oneof group X". A dotted name is a message nested in an earlier one.
    enums: dotted name, nested in a message, to the names of its values from 0 on.
    """
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    built: dict[str, Any] = {}
    for message_name in messages:
        outer, _, inner = message_name.rpartition(".")
        built[message_name] = (
            built[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=message_name)
        )
    for enum_name, values in (enums or {}).items():
        outer, _, inner = enum_name.rpartition(".")
        enum = built[outer].enum_type.add(name=inner)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    builder = _FieldBuilder(package, frozenset(enums or ()))
    for message_name, fields in messages.items():
        for field in fields:
            builder.add(built[message_name], message_name, field)
    for service_name, methods in services.items():
        service = file.service.add(name=service_name)
        for method_name, method in methods.items():
            service.method.add(
                name=method_name,
                input_type=f".{package}.{method.request}",
                output_type=f".{package}.{method.response}",
                client_streaming=method.is_client_stream,
                server_streaming=method.is_server_stream,
            )
    return file


class _FieldBuilder:
    def __init__(self, package: str, enums: frozenset[str]) -> None:
        self._package = package
        self._enums = enums

    def add(self, message: Any, message_name: str, declaration: str) -> None:
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
            self._set_type(entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL), "string")
            self._set_type(entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL), kind[1])
            self._set_type(field, f"{message_name}.{entry.name}")
        else:
            self._set_type(field, kind[-1])

    def _set_type(self, field: Any, kind: str) -> None:
        scalar = getattr(Field, f"TYPE_{kind.upper()}", None)
        if scalar is not None:
            field.type = scalar
        else:
            field.type = Field.TYPE_ENUM if kind in self._enums else Field.TYPE_MESSAGE
            field.type_name = f".{self._package}.{kind}"
