"""Replays a version's recorded requests.

Each request of the file goes through the handlers that serve its RPC, to the version
being loaded whatever model and version it names; responses in the file are not looked at.
(TensorFlow Serving: servables/tensorflow/saved_model_warmup_util.cc.)
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError, Message

from tfs.codec.decode_options import DEFAULT_OPTIONS, DecodeOptions
from tfs.codec.tfrecord import read_records
from tfs.core import stat_names
from tfs.core.call import Call, Metadata, Peer
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import (
    BY_CODE,
    DataLoss,
    DeadlineExceeded,
    InvalidArgument,
    ServingError,
    Unimplemented,
)
from tfs.core.servable import CancelToken, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.stats import Stats
from tfs.core.version_directory import WARMUP_REQUESTS, read_failure
from tfs.handlers import example_rpc
from tfs.handlers.examples import ExampleHandler
from tfs.handlers.predict import PredictHandler
from tfs.proto.tensorflow_serving.apis import model_pb2, prediction_log_pb2

MAX_RECORDS: Final = 1000


def read_warmup_requests(path: str) -> Iterator[prediction_log_pb2.PredictionLog]:
    """Yields the records of a version directory's file; none if there is no file.

    Raises:
        InvalidArgument: A record is no PredictionLog; the message says which.
        DataLoss: The file is no TFRecord file, or cut off.
        FailedPrecondition: The file exists and may not be read.
        Unavailable: It cannot be read now.

    """
    where = os.path.join(path, WARMUP_REQUESTS)
    if os.path.exists(where):
        yield from read_requests(where)


def read_requests(where: str) -> Iterator[prediction_log_pb2.PredictionLog]:
    """Yields the records of a file; raises as :func:`read_warmup_requests`."""
    try:
        file = open(where, "rb")  # noqa: SIM115  # closed below; a generator's
    except OSError as error:
        raise read_failure(error, f"cannot read {where}") from error
    with file:
        records = read_records(file)
        index = 0
        while True:
            try:
                record = next(records, None)
            except DataLoss as error:
                raise DataLoss(
                    f"{error.message}. Please verify your warmup data is in TFRecord "
                    "format."
                ) from error
            if record is None:
                return
            try:
                yield prediction_log_pb2.PredictionLog.FromString(record)
            except DecodeError as error:
                raise InvalidArgument(
                    f"Failed to parse warmup record: {index} from {where}"
                ) from error
            index += 1


_UNSUPPORTED: Final = ("session_run_log", "predict_streamed_log")


@dataclass(frozen=True, slots=True)
class WarmupOptions:
    """How versions are warmed up. Immutable.

    Attributes:
        enabled: Whether recorded requests are replayed at all.
        num_iterations: How often each is replayed.
        timeout_s: How long one replay may take.

    """

    enabled: bool = True
    num_iterations: int = 1
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if self.num_iterations < 1 or self.timeout_s <= 0:
            raise InvalidArgument(f"warm-up options that make no sense: {self}")


def replay(
    servable: Servable,
    path: str,
    options: WarmupOptions | None = None,
    clock: Clock | None = None,
) -> int:
    """Replays the requests recorded in the version directory ``path``.

    Blocks until the last is answered. Returns how many there were, 0 without a file.

    Raises:
        InvalidArgument: A record is no PredictionLog, or there are too many.
        DataLoss: The file is no TFRecord file, or cut off.
        Unimplemented: A record of an RPC that is not offered.
        ServingError: A replay failed, with its code; names the record.

    """
    options = options or WarmupOptions()
    clock = clock or MonotonicClock()
    replayed: Replay | None = None
    num = 0
    for index, entry in enumerate(read_warmup_requests(path)):
        if index >= MAX_RECORDS:
            raise InvalidArgument(
                f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at "
                f"{os.path.join(path, WARMUP_REQUESTS)}"
            )
        num += 1
        # Most versions need no handlers.
        replayed = replayed or Replay(servable, options, clock)
        error = replayed.send(entry, options.num_iterations)
        if error is not None:
            raise BY_CODE[error.code](
                f"{servable.id.slashed}: warm-up record {index} "
                f"({entry.WhichOneof('log_type')}) failed: {error.message}",
                retry_after_s=error.retry_after_s,
            ) from error
    return num


class Replay:
    """Sends recorded requests to one version, whatever they name. For one thread; blocks.

    Args:
        servable: The version.
        options: How long one may take.
        clock: Measures that.

    """

    def __init__(
        self, servable: Servable, options: WarmupOptions, clock: Clock
    ) -> None:
        self._servable = servable
        self._options = options
        self._clock = clock
        self._handlers = _handlers(servable)

    def send(
        self, entry: prediction_log_pb2.PredictionLog, num: int = 1
    ) -> ServingError | None:
        """Sends a record ``num`` times; returns how the first failed that did.

        Raises:
            Unimplemented: It is of an RPC that is not offered.

        """
        request = _request(entry, self._servable.id)
        if request is None:
            return None
        kind, message = request
        for _ in range(num):
            call = _ReplayCall(kind, message, self._clock)
            self._handlers[kind](call)
            error = call.wait(self._options.timeout_s)
            if error is not None:
                return error
        return None


def _request(
    entry: prediction_log_pb2.PredictionLog, servable_id: ServableId
) -> tuple[str, bytes] | None:
    """Returns a record's kind and its request, addressed to the loading version."""
    kind = entry.WhichOneof("log_type")
    if kind is None:
        return None
    if kind in _UNSUPPORTED:
        number = entry.DESCRIPTOR.fields_by_name[kind].number
        raise Unimplemented(f"Unsupported log_type for warmup: {number}")
    request: Message = getattr(entry, kind).request
    if kind == "multi_inference_log":
        for task in entry.multi_inference_log.request.tasks:
            _point_at(task.model_spec, servable_id)
    else:
        _point_at(request.model_spec, servable_id)  # type: ignore[attr-defined]
    return kind, request.SerializeToString()


def _point_at(spec: model_pb2.ModelSpec, servable_id: ServableId) -> None:
    spec.name = servable_id.name
    spec.ClearField("version")
    spec.ClearField("version_label")


def _handlers(servable: Servable) -> dict[str, Callable[[Call], None]]:
    lookup = _OneServable(servable)
    return {
        # What operators recorded may stand for more than what strangers send.
        "predict_log": PredictHandler(
            lookup, decoding=DecodeOptions.of_fill(DEFAULT_OPTIONS.max_tensor_bytes)
        ),
        "classify_log": ExampleHandler(lookup, example_rpc.CLASSIFY),
        "regress_log": ExampleHandler(lookup, example_rpc.REGRESS),
        "multi_inference_log": ExampleHandler(lookup, example_rpc.MULTI_INFERENCE),
    }


class _OneServable:
    """Always finds the one servable, which is not in the serving map yet."""

    def __init__(self, servable: Servable) -> None:
        self._handle: ServableHandle[Servable] = ServableHandle(servable.id, servable)

    def acquire(
        self,
        name: str,
        version: int | None,
        label: str | None,
        client_id: bytes | None,
        call: Call,
    ) -> ServableHandle[Servable]:
        return self.look_at(name, version, label)

    def look_at(
        self, name: str, version: int | None, label: str | None
    ) -> ServableHandle[Servable]:
        self._handle.pin(None)
        return self._handle

    def acquire_shared(
        self, name: str, version: int | None, label: str | None, num: int
    ) -> None:
        """Tells that each request is looked up by itself."""


class _ReplayCall:
    """A call whose client is the load thread; see :class:`tfs.core.call.Call`."""

    def __init__(self, method: str, message: bytes, clock: Clock) -> None:
        self.method = method
        self.message = message
        # None, so that batching does not hurry; ``wait`` has a limit of its own.
        self.deadline_s: float | None = None
        self.opened_s = clock.now()
        self.metadata: Metadata = ()
        self.peer = Peer("warm-up", "warm-up", is_loopback=True)
        self.cancel = CancelToken()
        self._clock = clock
        # Guards _outcomes; wakes ``wait``. Nothing is called under it.
        self._finished = threading.Condition()
        self._outcomes: list[ServingError | None] = []

    def reply(self, message: bytes) -> None:
        self._finish(None)

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        self._finish(None)

    def fail(self, error: ServingError) -> None:
        self._finish(error)

    def on_cancel(self, fn: Callable[[], None]) -> None:
        """Does nothing: only the limit ends a replay, and then the load fails."""

    def take_room(self, num_bytes: int, *, is_all: bool = False) -> bool:
        """Tells that there is room, because requests are replayed one at a time."""
        return True

    def wait(self, timeout_s: float) -> ServingError | None:
        """Blocks until the call is finished; returns the error, None if it has none."""
        until_s = self._clock.now() + timeout_s
        with self._finished:
            while not self._outcomes:
                if self._clock.now() >= until_s:
                    error = DeadlineExceeded(f"no answer within {timeout_s:g} s")
                    self.cancel.cancel(error)
                    return error
                self._clock.wait(self._finished, until_s)
            return self._outcomes[0]

    def _finish(self, outcome: ServingError | None) -> None:
        with self._finished:
            self._outcomes.append(outcome)
            self._finished.notify_all()


log = logging.getLogger(__name__)


def warm_up(
    servable: Servable, path: str, options: WarmupOptions, stats: Stats, clock: Clock
) -> int:
    """Warms a version up; returns by how many requests. Blocks.

    Args:
        servable: The version.
        path: Its directory.
        options: How to warm up.
        stats: The registry with the histogram of warm-up times.
        clock: Measures these times.

    Raises:
        ServingError: A record cannot be read, or its replay failed.

    """
    if not options.enabled:
        return 0
    begun_s = clock.now()
    num = replay(servable, path, options, clock)
    if num:
        took_s = clock.now() - begun_s
        stats.histogram(
            stat_names.WARMUP_LATENCY_S,
            stat_names.WARMUP_BOUNDS_S,
            model=servable.id.name,
        ).observe(took_s)
        log.info(
            "event=servable_warmed_up servable=%s records=%d iterations=%d took_s=%.3f",
            servable.id.slashed,
            num,
            options.num_iterations,
            took_s,
        )
    return num * options.num_iterations
