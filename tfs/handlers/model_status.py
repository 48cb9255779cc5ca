"""ModelService.GetModelStatus: what became of every version of a model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, Protocol

from tfs.codec.model_spec import model_spec_of
from tfs.core.call import Call
from tfs.core.errors import Code, InvalidArgument, NotFound, ServingError
from tfs.core.servable_state import ServableState
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.messages import QUESTION_BYTES, parse
from tfs.proto.tensorflow_serving.apis import get_model_status_pb2 as pb
from tfs.proto.tensorflow_serving.apis import status_pb2

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
        request = parse(pb.GetModelStatusRequest, message, QUESTION_BYTES)
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
    response = pb.GetModelStatusResponse()
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
