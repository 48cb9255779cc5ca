"""How a handler's errors reach the caller: as the call's failure or in its reply."""

from __future__ import annotations

from tfs.core.call import Call
from tfs.core.errors import Code, ServingError, forget_frames, serving_error
from tfs.proto.tensorflow_serving.apis import status_pb2


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
