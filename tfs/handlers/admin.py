"""tfs.v1.AdminService: checks who calls, reads the request, writes the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import Message

from tfs.core.call import Call, RpcMethod
from tfs.core.errors import ServingError
from tfs.handlers.admin_access import AdminAccess
from tfs.handlers.messages import (
    CONFIG_BYTES,
    NAMES_BYTES,
    QUESTION_BYTES,
    parse,
)
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

SERVICE: Final = "tfs.v1.AdminService"

R = TypeVar("R")

Done = Callable[[R | ServingError], None]
"""Takes the reply, or the error; called once, on any thread."""


class Admin(Protocol):
    """Operates the server. Thread-safe; never blocks, never raises.

    Every method answers through ``done``, shortly before ``deadline_s`` at the latest
    if it has to wait for models.
    """

    def list_models(
        self, request: pb.ListModelsRequest, done: Done[pb.ListModelsResponse]
    ) -> None:
        """Reports the models, their versions, and the state of each."""
        ...

    def get_config(
        self, request: pb.GetConfigRequest, done: Done[pb.GetConfigResponse]
    ) -> None:
        """Reads the configuration back."""
        ...

    def apply_config(
        self,
        request: pb.ApplyConfigRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.ApplyConfigResponse],
    ) -> None:
        """Makes a configuration the base."""
        ...

    def set_canary(
        self,
        request: pb.SetCanaryRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.SetCanaryResponse],
    ) -> None:
        """Puts a version on trial, changes the trial, or ends it."""
        ...

    def promote(
        self,
        request: pb.PromoteRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.PromoteResponse],
    ) -> None:
        """Makes a version the primary and ends its trial."""
        ...

    def rollback(
        self,
        request: pb.RollbackRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.RollbackResponse],
    ) -> None:
        """Pins an older version as the primary, until ended."""
        ...

    def reset_override(
        self,
        request: pb.ResetOverrideRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.ResetOverrideResponse],
    ) -> None:
        """Drops a model's override."""
        ...

    def retry_load(
        self,
        request: pb.RetryLoadRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.RetryLoadResponse],
    ) -> None:
        """Tries versions that failed again."""
        ...

    def aspire(self, request: pb.AspireRequest, done: Done[pb.AspireResponse]) -> None:
        """Puts what a fleet wants in force."""
        ...

    def leave_fleet(
        self, request: pb.LeaveFleetRequest, done: Done[pb.LeaveFleetResponse]
    ) -> None:
        """Forgets the fleet."""
        ...

    def get_page(
        self, request: pb.GetPageRequest, done: Done[pb.GetPageResponse]
    ) -> None:
        """Tells where the page is, and the server's key."""
        ...


def admin_methods(admin: Admin, access: AdminAccess) -> list[RpcMethod]:
    """Returns the methods of AdminService."""

    def method(
        name: str,
        request_type: Any,
        answer: Callable[[Any, Call, Any], None],
        max_bytes: int = QUESTION_BYTES,
    ) -> RpcMethod:
        handler = _Handler(request_type, answer, access, max_bytes)
        return RpcMethod(f"/{SERVICE}/{name}", handler)

    def changing(answer: Callable[..., None]) -> Callable[[Any, Call, Any], None]:
        return lambda request, call, done: answer(
            request, call.peer.address, call.deadline_s, done
        )

    return [
        method(
            "ListModels",
            pb.ListModelsRequest,
            lambda request, _, done: admin.list_models(request, done),
            NAMES_BYTES,
        ),
        method(
            "GetConfig",
            pb.GetConfigRequest,
            lambda request, _, done: admin.get_config(request, done),
        ),
        method(
            "ApplyConfig",
            pb.ApplyConfigRequest,
            changing(admin.apply_config),
            CONFIG_BYTES,
        ),
        method("SetCanary", pb.SetCanaryRequest, changing(admin.set_canary)),
        method("Promote", pb.PromoteRequest, changing(admin.promote)),
        method("Rollback", pb.RollbackRequest, changing(admin.rollback)),
        method(
            "ResetOverride", pb.ResetOverrideRequest, changing(admin.reset_override)
        ),
        method("RetryLoad", pb.RetryLoadRequest, changing(admin.retry_load)),
        method(
            "Aspire",
            pb.AspireRequest,
            lambda request, _, done: admin.aspire(request, done),
            CONFIG_BYTES,
        ),
        method(
            "LeaveFleet",
            pb.LeaveFleetRequest,
            lambda request, _, done: admin.leave_fleet(request, done),
        ),
        method(
            "GetPage",
            pb.GetPageRequest,
            lambda request, _, done: admin.get_page(request, done),
        ),
    ]


class _Handler:
    """Answers one method. Confined to the serving loop; replies come from any thread."""

    def __init__(
        self,
        request_type: Any,
        answer: Callable[[Any, Call, Any], None],
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

        self._answer(request, call, done)
