"""ModelService: what became of every version of a model, and another configuration.

(TensorFlow Serving: model_servers/model_service_impl.cc.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from tfs.codec.model_spec import model_spec_of
from tfs.core.call import Call
from tfs.core.errors import Code, InvalidArgument, NotFound, ServingError
from tfs.core.servable_state import ServableState
from tfs.handlers.admin_access import AdminAccess
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.message_limits import CONFIG_BYTES, QUESTION_BYTES, parse
from tfs.proto.tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    status_pb2,
)
from tfs.proto.tensorflow_serving.config import model_server_config_pb2

_QUICK_STATES: Final = 256


class StatusReader(Protocol):
    """What is known of models, whether loaded or not. Thread-safe, never blocks."""

    def version_states(self, name: str) -> Sequence[ServableState]:
        """Returns the states of a model's versions, newest version first."""
        ...

    def problem(self, name: str) -> str:
        """Returns why the model has no versions ("base path ... does not exist")."""
        ...


class ModelStatusHandler:
    """Answers GetModelStatus from the state monitor. Confined to the serving loop.

    (TensorFlow Serving: model_servers/get_model_status_impl.cc.)
    """

    def __init__(
        self, reader: StatusReader, decode_pool: DecodePool | None = None
    ) -> None:
        self._reader = reader
        self._decode_pool = decode_pool or DecodePool()

    def __call__(self, call: Call) -> None:
        """Replies with the states, versions descending, ended ones too."""
        try:
            states = self._asked(call.message)
            self._decode_pool.reply(
                call,
                functools.partial(_answer, states),
                is_long=len(states) > _QUICK_STATES,
            )
        except ServingError as error:
            call.fail(error)

    def _asked(self, message: bytes | memoryview) -> Sequence[ServableState]:
        request = parse(
            get_model_status_pb2.GetModelStatusRequest, message, QUESTION_BYTES
        )
        if not request.HasField("model_spec"):
            raise InvalidArgument("Missing ModelSpec")
        spec = model_spec_of(request.model_spec)
        states = self._reader.version_states(spec.name)
        if spec.version is not None:
            states = [state for state in states if state.id.version == spec.version]
        if not states:
            which = (
                "any versions" if spec.version is None else f"version {spec.version}"
            )
            problem = self._reader.problem(spec.name)
            raise NotFound(
                f"Could not find {which} of model {spec.name}"
                + (f": {problem}" if problem else "")
            )
        return states


def _answer(states: Sequence[ServableState]) -> bytes:
    response = get_model_status_pb2.GetModelStatusResponse()
    for state in states:
        added = response.model_version_status.add(
            version=state.id.version,
            state=state.manager_state.value,
        )
        fill_status(added.status, state.error)
    return response.SerializeToString()


def fill_status(status: status_pb2.StatusProto, error: ServingError | None) -> None:
    """Writes an outcome into a ``StatusProto``; OK has code 0 and no message."""
    status.error_code = int(  # type: ignore[assignment]  # protobuf's own enum
        Code.OK if error is None else error.code
    )
    status.error_message = "" if error is None else error.message


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
            request = parse(
                model_management_pb2.ReloadConfigRequest, call.message, CONFIG_BYTES
            )
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
            response = model_management_pb2.ReloadConfigResponse()
            fill_status(response.status, None)
            after = self._applier.counters()
            for name in request.metric_names:
                increase = after.get(name, 0) - before.get(name, 0)
                response.metric.add(name=name, int64_value_increase=int(increase))
            call.reply(response.SerializeToString())

        self._applier.apply_config(
            request.config, f"reload from {call.peer.address}", call.deadline_s, done
        )
