"""tfs.v1.AdminService: checks who calls, reads the request, writes the reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from tfs.core.call import Call, RpcMethod
from tfs.core.errors import ServingError
from tfs.handlers.admin_access import AdminAccess
from tfs.handlers.message_limits import (
    CONFIG_BYTES,
    NAMES_BYTES,
    QUESTION_BYTES,
    parse,
)
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

SERVICE: Final = "tfs.v1.AdminService"

Q = TypeVar("Q")
R = TypeVar("R")

Done = Callable[[R | ServingError], None]
"""Takes the reply, or the error; called once, on any thread."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[Q, R]):
    """A request to operate the server, and how it is answered. Immutable.

    Attributes:
        request: The request.
        caller: Who asks, for the log.
        deadline_s: When the caller stops waiting, monotonic; None for never.
        done: Takes the reply, or the error; called once, on any thread.

    """

    request: Q
    caller: str
    deadline_s: float | None
    done: Done[R]


Admin = Callable[[Asked[Any, Any]], None]
"""Operates the server as a request of AdminService asks. Any thread; never blocks or raises.

It answers through ``asked.done``, shortly before its deadline at the latest if it has to
wait for models.
"""

_MOST_BYTES: Final[Mapping[type[Message], int]] = {
    pb.ListModelsRequest: NAMES_BYTES,
    pb.GetConfigRequest: QUESTION_BYTES,
    pb.ApplyConfigRequest: CONFIG_BYTES,
    pb.SetCanaryRequest: QUESTION_BYTES,
    pb.PromoteRequest: QUESTION_BYTES,
    pb.RollbackRequest: QUESTION_BYTES,
    pb.ResetOverrideRequest: QUESTION_BYTES,
    pb.RetryLoadRequest: QUESTION_BYTES,
    pb.AspireRequest: CONFIG_BYTES,
    pb.LeaveFleetRequest: QUESTION_BYTES,
    pb.GetPageRequest: QUESTION_BYTES,
    pb.ProbeRequest: CONFIG_BYTES,
}
"""The methods of AdminService, by their requests, and how long these may be."""


def admin_methods(admin: Admin, access: AdminAccess) -> list[RpcMethod]:
    """Returns the methods of AdminService."""
    return [
        RpcMethod(
            f"/{SERVICE}/{request_type.__name__.removesuffix('Request')}",
            _Handler(request_type, admin, access, max_bytes),
        )
        for request_type, max_bytes in _MOST_BYTES.items()
    ]


class _Handler:
    """Answers one method. Confined to the serving loop; replies come from any thread."""

    def __init__(
        self,
        request_type: type[Message],
        admin: Admin,
        access: AdminAccess,
        max_bytes: int,
    ) -> None:
        self._max_bytes = max_bytes
        self._request_type = request_type
        self._admin = admin
        self._access = access

    def __call__(self, call: Call) -> None:
        """Starts the request."""
        try:
            self._access.check(call)
            request = parse(self._request_type, call.message, self._max_bytes)
        except ServingError as error:
            call.fail(error)
            return

        def done(outcome: Message | ServingError) -> None:
            if isinstance(outcome, ServingError):
                call.fail(outcome)
            else:
                call.reply(outcome.SerializeToString())

        self._admin(Asked(request, call.peer.address, call.deadline_s, done))
