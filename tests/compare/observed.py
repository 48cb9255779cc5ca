"""What a server answers, as text in which nothing is left that differs by itself."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Mapping
from typing import Any, Final

import grpc
from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from tests.compare.allowed import IGNORED_FIELDS
from tests.compare.requests import Request
from tfs.proto._pool import POOL
from tfs.proto.grpc.health.v1 import health_pb2
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

TIMEOUT_S: Final = 60
SETTLE_TIMEOUT_S: Final = 180
_MOVES: Final = "replacement: "
_NUM_ALIKE: Final = 3
_REPLIES: Final[Mapping[str, Any]] = {
    "Predict": predict_pb2.PredictResponse,
    "Classify": classification_pb2.ClassificationResponse,
    "Regress": regression_pb2.RegressionResponse,
    "MultiInference": inference_pb2.MultiInferenceResponse,
    "GetModelMetadata": get_model_metadata_pb2.GetModelMetadataResponse,
    "GetModelStatus": get_model_status_pb2.GetModelStatusResponse,
    "HandleReloadConfigRequest": model_management_pb2.ReloadConfigResponse,
    "Check": health_pb2.HealthCheckResponse,
    **{
        name.removesuffix("Response"): getattr(pb, name)
        for name in dir(pb)
        if name.endswith("Response")
    },
}
_MEASURED: Final = re.compile(
    r"\d[\d.,]*(e-?\d+)? ?(ms|µs|us|s|KiB|MiB|GiB|KB|MB|GB|bytes)\b"
)
_TIMES: Final = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?|\d\d:\d\d:\d\d")
_ADDRESS: Final = re.compile(r"127\.0\.0\.1:\d+")
_DIGEST: Final = re.compile(r"\b[0-9a-f]{12,64}\b")


class Text:
    """Renders what one server said. Immutable.

    Attributes:
        names: What to call the folders of this run, which differ between servers.

    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)

    def of(self, said: str, *, keeps_digests: bool = False) -> str:
        """Returns the text without folders, times, ports and measured numbers."""
        for folder, name in self.names.items():
            said = said.replace(folder, name)
        said = _TIMES.sub("TIME", _ADDRESS.sub("ADDRESS", said))
        if not keeps_digests:
            said = _DIGEST.sub("DIGEST", said)
        return _MEASURED.sub(r"N \2", said)

    def of_reply(self, path: str, reply: bytes) -> str:
        """Returns a reply as text, with a digest of the bytes of a prediction."""
        made = _REPLIES.get(path.rpartition("/")[2])
        if made is None:
            return f"{len(reply)} bytes"
        try:
            message = made.FromString(reply)
        except DecodeError:
            return f"not a {made.__name__}: {reply!r}"
        if isinstance(message, predict_pb2.PredictResponse):
            # Text shows no NaN's bits.
            exact = message.SerializeToString(deterministic=True)
            digest = hashlib.sha256(exact).hexdigest()
            return f"{_printed(message)}all of it: {digest}"
        _forget(message)
        return self.of(_printed(message).replace("\\n", "\n"))


def _printed(message: Message) -> str:
    return str(text_format.MessageToString(message, descriptor_pool=POOL))


def _forget(message: Message) -> None:
    """Clears what time, chance or the machine decides."""
    for field, value in message.ListFields():
        if field.full_name in IGNORED_FIELDS:
            message.ClearField(field.name)
        elif field.message_type is None or field.message_type.GetOptions().map_entry:
            if (
                field.message_type is not None
                and field.message_type.fields_by_name["value"].message_type
            ):
                for each in value.values():
                    _forget(each)
        elif field.is_repeated:
            for each in value:
                _forget(each)
        else:
            _forget(value)


class Caller:
    """Calls a server; every outcome is text. Confined to one thread."""

    def __init__(self, channel: grpc.Channel, text: Text) -> None:
        self._channel = channel
        self._text = text

    def begin(self, path: str, message: bytes) -> Any:
        """Starts a call; its outcome is for :meth:`end`."""
        method = self._channel.unary_unary(path, bytes, bytes)
        return method.future(message, timeout=TIMEOUT_S)

    def end(self, path: str, call: Any) -> str:
        """Blocks until the call has ended; returns how."""
        try:
            reply = self._text.of_reply(path, call.result())
        except grpc.RpcError:
            reply = ""
        words = self._text.of(call.details() or "")
        pairs = [*(call.initial_metadata() or ()), *(call.trailing_metadata() or ())]
        metadata = sorted(f"{key}: {self._text.of(str(text))}" for key, text in pairs)
        return "\n".join([f"{call.code().name} {words}", *metadata, reply]).strip()

    def ask(self, request: Request) -> str:
        """Blocks for one call."""
        return self.end(request.path, self.begin(request.path, request.message))

    def admin(self, method: str, message: Message) -> str:
        """Blocks for one call of AdminService."""
        path = f"/tfs.v1.AdminService/{method}"
        return self.end(path, self.begin(path, message.SerializeToString()))

    def settle(self) -> None:
        """Blocks until every version is available or has failed, and stays so for a moment.

        Raises:
            RuntimeError: It takes too long.

        """
        ask = self._channel.unary_unary(
            "/tfs.v1.AdminService/ListModels", None, pb.ListModelsResponse.FromString
        )
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        seen: list[object] = []
        while time.monotonic() < deadline_s:
            reply = pb.ListModelsResponse()
            with contextlib.suppress(grpc.RpcError):
                reply = ask(b"", timeout=5, wait_for_ready=True)
            states = [
                (model.name, each.version, each.state, each.reason)
                for model in reply.models
                for each in model.versions
            ]
            moves = [
                each for each in states if each[2] not in (30, 50) or _MOVES in each[3]
            ]
            is_up = reply.server.state in (
                pb.ServerReport.SERVING,
                pb.ServerReport.DRAINING,
            )
            if is_up and not moves and seen[-_NUM_ALIKE:] == [states] * _NUM_ALIKE:
                return
            seen.append(states)
            time.sleep(0.1)  # it is loading; there is nothing to wait on
        raise RuntimeError(f"versions did not settle: {seen[-1]}")
