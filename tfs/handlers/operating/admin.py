"""tfs.v1.AdminService: checks who calls, reads the request, writes the reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from tfs.core.call import Call, RpcMethod
from tfs.core.errors import ServingError
from tfs.handlers.messages import (
    CONFIG_BYTES,
    NAMES_BYTES,
    QUESTION_BYTES,
    parse,
)
from tfs.handlers.operating.admin_access import AdminAccess
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


class Admin(Protocol):
    """Operates the server. Thread-safe; never blocks, never raises.

    Every method answers through ``asked.done``, shortly before its deadline at the latest
    if it has to wait for models.
    """

    def list_models(
        self, asked: Asked[pb.ListModelsRequest, pb.ListModelsResponse]
    ) -> None:
        """Reports the models, their versions, and the state of each."""
        ...

    def get_config(
        self, asked: Asked[pb.GetConfigRequest, pb.GetConfigResponse]
    ) -> None:
        """Reads the configuration back."""
        ...

    def apply_config(
        self, asked: Asked[pb.ApplyConfigRequest, pb.ApplyConfigResponse]
    ) -> None:
        """Makes a configuration the base."""
        ...

    def set_canary(
        self, asked: Asked[pb.SetCanaryRequest, pb.SetCanaryResponse]
    ) -> None:
        """Puts a version on trial, changes the trial, or ends it."""
        ...

    def promote(self, asked: Asked[pb.PromoteRequest, pb.PromoteResponse]) -> None:
        """Makes a version the primary and ends its trial."""
        ...

    def rollback(self, asked: Asked[pb.RollbackRequest, pb.RollbackResponse]) -> None:
        """Pins an older version as the primary, until ended."""
        ...

    def reset_override(
        self, asked: Asked[pb.ResetOverrideRequest, pb.ResetOverrideResponse]
    ) -> None:
        """Drops a model's override."""
        ...

    def retry_load(
        self, asked: Asked[pb.RetryLoadRequest, pb.RetryLoadResponse]
    ) -> None:
        """Tries versions that failed again."""
        ...

    def aspire(self, asked: Asked[pb.AspireRequest, pb.AspireResponse]) -> None:
        """Puts what a fleet wants in force."""
        ...

    def leave_fleet(
        self, asked: Asked[pb.LeaveFleetRequest, pb.LeaveFleetResponse]
    ) -> None:
        """Forgets the fleet."""
        ...

    def get_page(self, asked: Asked[pb.GetPageRequest, pb.GetPageResponse]) -> None:
        """Tells where the page is, and the server's key."""
        ...


def admin_methods(admin: Admin, access: AdminAccess) -> list[RpcMethod]:
    """Returns the methods of AdminService."""
    answers: list[tuple[type[Message], Callable[[Any], None], int]] = [
        (pb.ListModelsRequest, admin.list_models, NAMES_BYTES),
        (pb.GetConfigRequest, admin.get_config, QUESTION_BYTES),
        (pb.ApplyConfigRequest, admin.apply_config, CONFIG_BYTES),
        (pb.SetCanaryRequest, admin.set_canary, QUESTION_BYTES),
        (pb.PromoteRequest, admin.promote, QUESTION_BYTES),
        (pb.RollbackRequest, admin.rollback, QUESTION_BYTES),
        (pb.ResetOverrideRequest, admin.reset_override, QUESTION_BYTES),
        (pb.RetryLoadRequest, admin.retry_load, QUESTION_BYTES),
        (pb.AspireRequest, admin.aspire, CONFIG_BYTES),
        (pb.LeaveFleetRequest, admin.leave_fleet, QUESTION_BYTES),
        (pb.GetPageRequest, admin.get_page, QUESTION_BYTES),
    ]
    return [
        RpcMethod(
            f"/{SERVICE}/{request_type.__name__.removesuffix('Request')}",
            _Handler(request_type, answer, access, max_bytes),
        )
        for request_type, answer, max_bytes in answers
    ]


class _Handler:
    """Answers one method. Confined to the serving loop; replies come from any thread."""

    def __init__(
        self,
        request_type: type[Message],
        answer: Callable[[Any], None],
        access: AdminAccess,
        max_bytes: int,
    ) -> None:
        self._max_bytes = max_bytes
        self._request_type = request_type
        self._answer = answer
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

        self._answer(Asked(request, call.peer.address, call.deadline_s, done))
