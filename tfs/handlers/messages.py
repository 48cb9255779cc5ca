"""Small steps that several handlers take."""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from google.protobuf.message import DecodeError

from tfs.core.call import Call
from tfs.core.errors import (
    Code,
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    forget_frames,
    serving_error,
)
from tfs.proto.tensorflow_serving.apis import status_pb2

M = TypeVar("M", covariant=True)


class _MessageType(Protocol[M]):
    """A generated message class."""

    def FromString(self, s: bytes, /) -> M: ...


QUESTION_BYTES: Final = 1 << 16
"""Longest request, in bytes, of methods that only ask for information or name a model.
They are parsed on the serving loop."""

NAMES_BYTES: Final = 1 << 20
"""Longest request, in bytes, of a method that takes the names of many models."""

CONFIG_BYTES: Final = 8 << 20
"""Longest request, in bytes, with a configuration; that is enough for a hundred
thousand models. Parsing it takes up to 0.1 s and holds Python's lock, whichever thread
does it."""


def parse(
    message_type: _MessageType[M],
    message: bytes | memoryview,
    max_bytes: int | None = None,
) -> M:
    """Returns the parsed request.

    Raises:
        InvalidArgument: The bytes are no such message.
        ResourceExhausted: They are more than ``max_bytes``, if that is given.

    """
    if max_bytes is not None and len(message) > max_bytes:
        raise ResourceExhausted(
            f"a request of {len(message)} bytes; this method takes {max_bytes}"
        )
    try:
        return message_type.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse the request: {error}") from error


def fail_call(call: Call, error: Exception, where: str) -> Code:
    """Fails a call that could not be answered; returns the code that the caller gets.

    Args:
        call: The call, not finished yet.
        error: The error that was raised while its answer was made.
        where: The version and the method, for an error that names neither.

    """
    failure = failure_of(error, where)
    call.fail(failure)
    return failure.code


def failure_of(error: Exception, where: str) -> ServingError:
    """Returns the error that the caller gets; see :func:`fail_call`."""
    failure = serving_error(error, where)
    forget_frames(failure)  # frames keep the request and its answer alive
    return failure


def fill_status(status: status_pb2.StatusProto, error: ServingError | None) -> None:
    """Writes an outcome into a ``StatusProto``; OK has code 0 and no message."""
    status.error_code = int(  # type: ignore[assignment]  # protobuf's own enum
        Code.OK if error is None else error.code
    )
    status.error_message = "" if error is None else error.message
