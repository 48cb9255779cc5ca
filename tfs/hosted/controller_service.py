"""tfs.v1.Controller: checks who calls, reads the request, writes the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tfs.core.call import Call, MethodKind, RpcMethod, StreamCall
from tfs.core.errors import PermissionDenied, ServingError, serving_error
from tfs.core.executor import Executor
from tfs.handlers.admin_access import AdminAccess, AdminFrom
from tfs.handlers.message_limits import CONFIG_BYTES, parse
from tfs.handlers.reflection import OpenStreams
from tfs.hosted.controller import Controller
from tfs.hosted.edit_reader import REQUESTS
from tfs.hosted.identities import Identities
from tfs.proto.tfs.v1 import controller_pb2 as pb

SERVICE: Final = "tfs.v1.Controller"

_ALLOWED: Final = frozenset({AdminFrom.LOOPBACK, AdminFrom.SOCKET, AdminFrom.MTLS})


class ControllerAccess:
    """Who may operate a fleet. Immutable.

    Args:
        key: What callers over HTTP may show; empty for none.
        identities: What callers with a certificate may do.

    """

    def __init__(self, key: str, identities: Identities) -> None:
        self._access = AdminAccess(_ALLOWED, key)
        self._identities = identities

    def owner(self, call: Call, *, changes: bool) -> str:
        """Returns the name that a caller goes by, if it may do that.

        Raises:
            PermissionDenied: It may not.

        """
        self.check(call)
        return self._identities.owner(call.peer, changes=changes)

    def check(self, call: Call) -> None:
        """Returns if this caller may come in.

        Raises:
            PermissionDenied: It may not.

        """
        try:
            self._access.check(call)
        except PermissionDenied:
            raise PermissionDenied(
                f"{call.peer.address} may not operate this fleet: call from its machine, "
                "or with a verified certificate; over HTTP with one, or with the key of "
                "its folder, as Authorization: Bearer KEY"
            ) from None


class ControllerService:
    """The methods of the service. Confined to the serving loop; replies come from any thread.

    Args:
        controller: Acts on requests.
        executor: Runs what blocks on the store.
        streams: Ends watches when the server drains.
        post: Runs a function on the loop.
        access: Who may call.

    """

    def __init__(
        self,
        controller: Controller,
        executor: Executor,
        streams: OpenStreams,
        post: Callable[[Callable[[], None]], None],
        access: ControllerAccess,
    ) -> None:
        self._controller = controller
        self._executor = executor
        self._streams = streams
        self._post = post
        self._access = access

    def methods(self) -> list[RpcMethod]:
        """Returns the methods, by path."""
        controller = self._controller
        answers: dict[str, tuple[Any, Callable[[Any, str], Any]]] = {
            "GetModel": (pb.GetModelRequest, lambda asked, _: controller.model(asked)),
            "ListModels": (
                pb.ListFleetRequest,
                lambda asked, _: controller.fleet(asked),
            ),
            "GetOp": (pb.GetOpRequest, lambda asked, _: controller.op(asked)),
            "Simulate": (pb.SimulateRequest, controller.simulate),
        }
        methods = [
            RpcMethod(f"/{SERVICE}/{name}", self._asking(kind, answer))
            for name, (kind, answer) in answers.items()
        ]
        methods += [
            RpcMethod(
                f"/{SERVICE}/{kind.__name__.removesuffix('Request')}",
                self._changing(kind),
            )
            for kind in REQUESTS
        ]
        watch = RpcMethod(
            f"/{SERVICE}/WatchModel", self._watch, MethodKind.SERVER_STREAM
        )
        return [*methods, watch]

    def _asking(
        self, kind: Any, answer: Callable[[Any, str], Any]
    ) -> Callable[[Call], None]:
        def run(call: Call, request: Any, owner: str) -> None:
            call.reply(answer(request, owner).SerializeToString())

        return lambda call: self._start(call, kind, run)

    def _changing(self, kind: Any) -> Callable[[Call], None]:
        def run(call: Call, request: Any, owner: str) -> None:
            self._controller.change(
                request,
                call.deadline_s,
                lambda op: call.reply(op.SerializeToString()),
                owner,
            )

        return lambda call: self._start(call, kind, run, changes=True)

    def _watch(self, call: StreamCall) -> None:
        def run(_: Call, request: Any, owner: str) -> None:
            def tell(model: pb.ModelInfo | None) -> None:
                if model is None:
                    self._post(lambda: self._streams.finish(call))
                else:
                    # A client that reads too slowly gets the next state instead.
                    call.send(model.SerializeToString())

            self._controller.watch(request, tell, lambda: call.cancel.error is None)

        if self._streams.add(call):
            self._start(call, pb.GetModelRequest, run)

    def _start(
        self,
        call: Call,
        kind: Any,
        run: Callable[[Call, Any, str], None],
        *,
        changes: bool = False,
    ) -> None:
        try:
            owner = self._access.owner(call, changes=changes)
            request = parse(kind, call.message, CONFIG_BYTES)
        except ServingError as error:
            call.fail(error)
            return

        def work() -> None:
            try:
                run(call, request, owner)
            except Exception as error:
                call.fail(serving_error(error, call.method))

        self._executor.submit(work)
