"""The status and the metadata of a model as JSON, in protobuf's own form of it."""

from __future__ import annotations

import json
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message

from tfs.core.http_call import HttpReply
from tfs.proto._pool import POOL
from tfs.proto.tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
)

_INDENT: Final = 1


def status_reply(response: bytes) -> HttpReply:
    """Returns the answer for a serialized ``GetModelStatusResponse``."""
    message = get_model_status_pb2.GetModelStatusResponse.FromString(response)
    return HttpReply((_json(message),))


def metadata_reply(response: bytes) -> HttpReply:
    """Returns the answer for a serialized ``GetModelMetadataResponse``."""
    message = get_model_metadata_pb2.GetModelMetadataResponse.FromString(response)
    document = json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=POOL,
    )
    for value in document.get("metadata", {}).values():
        value.pop("@type", None)
    return HttpReply((_text(document),))


def _json(message: Message) -> bytes:
    return json_format.MessageToJson(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        indent=_INDENT,
    ).encode()


def _text(document: Any) -> bytes:
    return json.dumps(document, indent=_INDENT).encode()
