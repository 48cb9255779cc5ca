"""The protocol's messages as JSON: every field by its name, numbers as numbers."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message


def document_of(message: Message) -> dict[str, Any]:
    """Returns a message as a document of Python values; empty maps are left out."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if value:
                document[field.name] = dict(value)
        elif field.message_type is not None:
            document[field.name] = [document_of(each) for each in value]
        elif isinstance(value, str | bool | int):
            document[field.name] = value
        else:
            document[field.name] = list(value)
    return document
