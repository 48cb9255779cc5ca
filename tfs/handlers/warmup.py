"""Replays a version's recorded requests before it becomes available.

A version may bring ``assets.extra/tf_serving_warmup_requests``, a TFRecord file of
PredictionLog. Each request in it goes through the handlers that serve its RPC, to the
version being loaded whatever model and version it names; responses in the file are not
looked at. A request that fails fails the load: better no version than one that cannot
answer what it was recorded for.
(TensorFlow Serving: servables/tensorflow/saved_model_warmup_util.cc.)
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError, Message

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
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import CancelToken, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.stats import Stats
from tfs.core.version_directory import read_failure
from tfs.handlers import example_rpc
from tfs.handlers.examples import ExampleHandler
from tfs.handlers.predict import PredictHandler
from tfs.proto.tensorflow_serving.apis import model_pb2, prediction_log_pb2

log = logging.getLogger(__name__)

WARMUP_FILE: Final = os.path.join("assets.extra", "tf_serving_warmup_requests")
MAX_RECORDS: Final = 1000

OnWarmed = Callable[[ServableId, int], None]
"""Takes a version and with how many requests it was warmed up."""


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


class WarmedLoader:
    """Loads what another loader loads, then replays its recorded requests.

    Confined to one caller at a time, as every :class:`tfs.core.loader.Loader`. A replay
    that fails unloads the version again: ``load`` leaves nothing behind.

    Args:
        inner: Loads the version.
        path: The version directory.
        options: How to warm up.
        stats: Where the time it took is kept.
        clock: What times go by.
        on_warmed: Told how many requests ran, once they have, on the loading thread.

    """

    def __init__(
        self,
        inner: Loader[Servable],
        path: str,
        options: WarmupOptions,
        stats: Stats,
        clock: Clock,
        on_warmed: OnWarmed = lambda _id, _num: None,
    ) -> None:
        self._inner = inner
        self._path = path
        self._options = options
        self._stats = stats
        self._clock = clock
        self._on_warmed = on_warmed

    def estimate_resources(self) -> ResourceAllocation:
        """Returns what the inner loader says: replaying takes what serving takes."""
        return self._inner.estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        """Loads and warms up; see :meth:`tfs.core.loader.Loader.load`."""
        self._inner.load(servable_id)
        if not self._options.enabled:
            return
        begun_s = self._clock.now()
        try:
            num = replay(self._inner.servable, self._path, self._options, self._clock)
        except BaseException:
            self._inner.unload()
            raise
        self._on_warmed(servable_id, num * self._options.num_iterations)
        if num:
            took_s = self._clock.now() - begun_s
            self._stats.histogram(
                stat_names.WARMUP_LATENCY_S,
                stat_names.WARMUP_BOUNDS_S,
                model=servable_id.name,
            ).observe(took_s)
            log.info(
                "event=servable_warmed_up servable=%s records=%d iterations=%d "
                "took_s=%.3f",
                servable_id.slashed,
                num,
                self._options.num_iterations,
                took_s,
            )

    def unload(self) -> None:
        """Frees the version."""
        self._inner.unload()

    @property
    def servable(self) -> Servable:
        """The loaded and warm servable."""
        return self._inner.servable


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
    handlers: Mapping[str, Callable[[Call], None]] = {}
    num = 0
    for index, entry in enumerate(read_warmup_requests(path)):
        if index >= MAX_RECORDS:
            raise InvalidArgument(
                f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at "
                f"{os.path.join(path, WARMUP_FILE)}"
            )
        num += 1
        handlers = handlers or _handlers(servable)  # most versions need none
        request = _request(entry, servable.id)
        if request is None:
            continue
        kind, message = request
        for _ in range(options.num_iterations):
            call = _ReplayCall(kind, message, clock)
            handlers[kind](call)
            error = call.wait(options.timeout_s)
            if error is not None:
                raise BY_CODE[error.code](
                    f"{servable.id.slashed}: warm-up record {index} ({kind}) failed: "
                    f"{error.message}",
                    retry_after_s=error.retry_after_s,
                ) from error
    return num


def read_warmup_requests(path: str) -> Iterator[prediction_log_pb2.PredictionLog]:
    """Yields the records of a version directory, none without a file.

    Raises:
        InvalidArgument: A record is no PredictionLog; says which.
        DataLoss: The file is no TFRecord file, or cut off.
        FailedPrecondition: It is there and may not be read.
        Unavailable: It cannot be read now.

    """
    where = os.path.join(path, WARMUP_FILE)
    try:
        file = open(where, "rb")  # noqa: SIM115  # closed below; a generator's
    except FileNotFoundError:
        return
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


def _request(
    entry: prediction_log_pb2.PredictionLog, servable_id: ServableId
) -> tuple[str, bytes] | None:
    """Returns a record's kind and its request, asked of the version being loaded."""
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
        "predict_log": PredictHandler(lookup),
        "classify_log": ExampleHandler(lookup, example_rpc.CLASSIFY),
        "regress_log": ExampleHandler(lookup, example_rpc.REGRESS),
        "multi_inference_log": ExampleHandler(lookup, example_rpc.MULTI_INFERENCE),
    }


class _OneServable:
    """Finds the servable that is not in the serving map yet, whatever is asked for."""

    def __init__(self, servable: Servable) -> None:
        self._handle: ServableHandle[Servable] = ServableHandle(servable.id, servable)

    def acquire(
        self,
        name: str,
        version: int | None,
        label: str | None,
        client_id: bytes | None = None,
        call: Call | None = None,
    ) -> ServableHandle[Servable]:
        self._handle.pin(None)
        return self._handle


class _ReplayCall:
    """A call whose client is the load thread; see :class:`tfs.core.call.Call`."""

    def __init__(self, method: str, message: bytes, clock: Clock) -> None:
        self.method = method
        self.message = message
        # None, so that batching does not hurry: ``wait`` has a limit of its own.
        self.deadline_s: float | None = None
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
        """Nobody cancels a replay but its limit, and then the load fails."""

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
