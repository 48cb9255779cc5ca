"""Small steps that every handler of upb messages takes."""

from __future__ import annotations

from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError

from tfs.core.errors import Code, InvalidArgument, ServingError
from tfs.proto.tensorflow_serving.apis import status_pb2

M = TypeVar("M", covariant=True)


class _MessageType(Protocol[M]):
    """A generated message class."""

    def FromString(self, s: bytes, /) -> M: ...


def parse(message_type: _MessageType[M], message: bytes | memoryview) -> M:
    """Returns the parsed request.

    Raises:
        InvalidArgument: The bytes are no such message.

    """
    try:
        return message_type.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse the request: {error}") from error


def fill_status(status: status_pb2.StatusProto, error: ServingError | None) -> None:
    """Writes an outcome into a ``StatusProto``; OK has code 0 and no message."""
    status.error_code = int(  # type: ignore[assignment]  # protobuf's own enum
        Code.OK if error is None else error.code
    )
    status.error_message = "" if error is None else error.message
