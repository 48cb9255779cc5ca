"""Ours and upstream's definitions, as facts that can be compared.

A message, enum or service becomes a dict from what is declared in it to what the wire
or a client can tell of it: numbers, types, JSON names, defaults, which oneof. Comments,
order, and options for other languages are no facts.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

import tfs.proto

UPSTREAM = Path(__file__).resolve().parents[1] / "data" / "upstream_descriptors.binpb"

Facts = dict[str, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A message, enum or service. Immutable.

    Attributes:
        file: The proto file that declares it.
        facts: By what is declared.

    """

    file: str
    facts: Facts


def upstream_files() -> list[FileDescriptorProto]:
    """Returns the recorded upstream files, dependencies first."""
    return list(FileDescriptorSet.FromString(UPSTREAM.read_bytes()).file)


def our_files() -> list[FileDescriptorProto]:
    """Imports every generated module and returns its file."""
    modules = (
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(tfs.proto.__path__, "tfs.proto.")
        if module.name.endswith("_pb2")
    )
    return [
        FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for module in modules
    ]


def symbols(files: list[FileDescriptorProto]) -> dict[str, Symbol]:
    """Returns every message, enum and service by its full name."""
    return {
        name: Symbol(file.name, facts)
        for file in files
        for name, facts in _symbols_of(file)
    }


def _symbols_of(file: FileDescriptorProto) -> Iterator[tuple[str, Facts]]:
    for message in file.message_type:
        yield from _messages(message, file.package)
    for enum in file.enum_type:
        yield f"{file.package}.{enum.name}", _enum_facts(enum)
    for service in file.service:
        yield f"{file.package}.{service.name}", _service_facts(service)


def _messages(message: DescriptorProto, scope: str) -> Iterator[tuple[str, Facts]]:
    name = f"{scope}.{message.name}"
    yield name, _message_facts(message)
    for nested in message.nested_type:
        yield from _messages(nested, name)
    for enum in message.enum_type:
        yield f"{name}.{enum.name}", _enum_facts(enum)


def _message_facts(message: DescriptorProto) -> Facts:
    facts: Facts = {
        f"field {field.name}": _field_facts(field, message) for field in message.field
    }
    for index, kept in enumerate(message.reserved_range):
        facts[f"reserved range {index}"] = (kept.start, kept.end)
    facts["reserved names"] = tuple(sorted(message.reserved_name))
    facts["map entry"] = (message.options.map_entry,)
    return facts


def _field_facts(
    field: FieldDescriptorProto, message: DescriptorProto
) -> tuple[object, ...]:
    oneof = (
        message.oneof_decl[field.oneof_index].name
        if field.HasField("oneof_index")
        else None
    )
    return (
        ("number", field.number),
        ("label", field.label),
        ("type", field.type),
        ("type name", field.type_name),
        ("JSON name", field.json_name or _json_name(field.name)),
        ("default", field.default_value),
        ("oneof", oneof),
        ("proto3 optional", field.proto3_optional),
        ("packed", _is_packed(field)),
        ("deprecated", field.options.deprecated),
    )


def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _is_packed(field: FieldDescriptorProto) -> bool:
    kinds = FieldDescriptorProto.Type
    unpackable = {
        kinds.TYPE_STRING,
        kinds.TYPE_BYTES,
        kinds.TYPE_MESSAGE,
        kinds.TYPE_GROUP,
    }
    if field.label != FieldDescriptorProto.LABEL_REPEATED or field.type in unpackable:
        return False
    return field.options.packed if field.options.HasField("packed") else True


def _enum_facts(enum: EnumDescriptorProto) -> Facts:
    return {f"value {value.name}": (value.number,) for value in enum.value}


def _service_facts(service: ServiceDescriptorProto) -> Facts:
    return {
        f"method {method.name}": (
            method.input_type,
            method.output_type,
            method.client_streaming,
            method.server_streaming,
        )
        for method in service.method
    }
