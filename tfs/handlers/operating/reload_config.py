"""ModelService.HandleReloadConfigRequest: a new config by RPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tfs.core.call import Call
from tfs.core.errors import InvalidArgument, ServingError
from tfs.handlers.messages import CONFIG_BYTES, parse
from tfs.handlers.model_status import fill_status
from tfs.handlers.operating.admin_access import AdminAccess
from tfs.proto.tensorflow_serving.apis import model_management_pb2 as pb
from tfs.proto.tensorflow_serving.config import model_server_config_pb2


class ConfigApplier(Protocol):
    """Takes new configs. Thread-safe; never blocks."""

    def apply_config(
        self,
        message: model_server_config_pb2.ModelServerConfig,
        reason: str,
        deadline_s: float | None,
        on_done: Callable[[ServingError | None], None],
    ) -> None:
        """Validates and commits, then waits for new models.

        ``on_done`` runs once, on any thread, shortly before ``deadline_s`` at the
        latest: with None when every new model is available, else with what is wrong.
        A config that is invalid changes nothing; one whose models fail to load stays.
        """
        ...

    def counters(self) -> Mapping[str, float]:
        """Returns the values behind ``ReloadConfigRequest.metric_names``."""
        ...


class ReloadConfigHandler:
    """Answers HandleReloadConfigRequest. Confined to the serving loop.

    The reply's status and the RPC's are the same, as in TensorFlow Serving
    (model_servers/model_service_impl.cc).
    """

    def __init__(
        self, applier: ConfigApplier, access: AdminAccess | None = None
    ) -> None:
        self._applier = applier
        self._access = access or AdminAccess()

    def __call__(self, call: Call) -> None:
        """Starts the reload; the call ends when it has taken effect."""
        try:
            self._access.check(call)
            request = parse(pb.ReloadConfigRequest, call.message, CONFIG_BYTES)
            if request.config.WhichOneof("config") != "model_config_list":
                raise InvalidArgument(
                    "ServerModelConfig type not supported by "
                    "HandleReloadConfigRequest. Only ModelConfigList is currently "
                    "supported"
                )
        except ServingError as error:
            call.fail(error)
            return
        before = self._applier.counters()

        def done(error: ServingError | None) -> None:
            if error is not None:
                call.fail(error)
                return
            response = pb.ReloadConfigResponse()
            fill_status(response.status, None)
            after = self._applier.counters()
            for name in request.metric_names:
                increase = after.get(name, 0) - before.get(name, 0)
                response.metric.add(name=name, int64_value_increase=int(increase))
            call.reply(response.SerializeToString())

        self._applier.apply_config(
            request.config, f"reload from {call.peer.address}", call.deadline_s, done
        )
