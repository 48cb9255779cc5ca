"""Decides which requests of which models are logged, and writes them off the request path.

Models with equal settings share a logger. Records wait for the writer's thread in a bounded
queue; those that do not fit are dropped and counted, because a slow disk should cost log
records and not answers. A record is a ``PredictionLog`` and has request and response as the
bytes that travelled; nothing is parsed. (TensorFlow Serving: core/server_request_logger.cc, request_logger.cc.)
"""

from __future__ import annotations

import functools
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tfs.codec import wire
from tfs.codec.model_spec import ModelSpec, write_model_spec
from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.stats import Stats
from tfs.handlers.limits.answered_request import AnsweredRequest, RequestLog
from tfs.proto.tensorflow_serving.apis import logging_pb2
from tfs.proto.tensorflow_serving.config.logging_config_pb2 import (
    LoggingConfig,
    SamplingConfig,
)
from tfs.server.request_log.rotated_file import RotatedFile

log = logging.getLogger(__name__)

_LONGEST_CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LogWriterOptions:
    """How much may wait, and how large files may grow. Immutable.

    Attributes:
        max_queued_records: Records that may wait.
        max_queued_bytes: Bytes of all waiting records.
        max_file_bytes: A file that has reached this size is closed, and the next begun.
        max_files: Files kept of each prefix; the oldest are deleted first. 0 keeps all.
        max_total_bytes: Bytes of all files of a prefix together; 0 is no limit.

    """

    max_queued_records: int = 10_000
    max_queued_bytes: int = 64 << 20
    max_file_bytes: int = 64 << 20
    max_files: int = 0
    max_total_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("max_queued_records", "max_queued_bytes", "max_file_bytes"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be positive: {getattr(self, name)}")
        for name in ("max_files", "max_total_bytes"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} is negative: {getattr(self, name)}")


_Item: TypeAlias = tuple[RotatedFile, int, Callable[[], bytes] | None]
"""A file, and the record to write to it: its size and what makes it; None closes the file."""


class LogWriter:
    """Writes records, on an executor. Thread-safe.

    ``submit`` never blocks for longer than an append and never raises.

    Args:
        clock: Names the files by it.
        stats: Counts records.
        options: How much may wait, and how large files may grow.
        executor: Has one thread, which waits for disks. None makes one.

    """

    def __init__(
        self,
        clock: Clock,
        stats: Stats,
        options: LogWriterOptions | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.options = options or LogWriterOptions()
        self.clock = clock
        self._executor = executor or ThreadExecutor(1, "log-writer", clock)
        self._num_written = stats.counter(stat_names.LOG_RECORDS)
        self._num_dropped = {
            reason: stats.counter(stat_names.LOG_DROPPED, reason=reason)
            for reason in ("queue", "disk")
        }
        # Guards the fields below; leaf: nothing is called, written or made under it.
        self._lock = threading.Lock()
        self._queue: deque[_Item] = deque()
        self._num_bytes = 0
        self._is_asked = False  # whether the executor will write what is queued
        self._files: list[RotatedFile] = []
        self._closed = False
        # Why the last write failed, by prefix, so that a full disk is one line in the
        # log and not one for each record. Replaced by the writer, never mutated.
        self._problems: Mapping[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """Sentences about logs that cannot be written now."""
        return [
            f"the request log {prefix} cannot be written, its records are lost: {problem}"
            for prefix, problem in sorted(self._problems.items())
        ]

    def open(self, prefix: str) -> RotatedFile:
        """Returns files for ``submit``; none is made before the first record."""
        options = self.options
        file = RotatedFile(
            prefix,
            lambda num, error: self._note_written(prefix, num, error),
            options.max_file_bytes,
            self.clock,
            max_files=options.max_files,
            max_total_bytes=options.max_total_bytes,
        )
        with self._lock:
            self._files.append(file)
        return file

    def submit(
        self, file: RotatedFile, size_bytes: int, make: Callable[[], bytes]
    ) -> bool:
        """Queues a record of about ``size_bytes``, which ``make`` returns later.

        Returns False, and counts it as dropped, if there is no room.
        """
        with self._lock:
            taken = (
                not self._closed
                and len(self._queue) < self.options.max_queued_records
                and self._num_bytes + size_bytes <= self.options.max_queued_bytes
            )
            if taken:
                self._queue.append((file, size_bytes, make))
                self._num_bytes += size_bytes
        if taken:
            self._ask()
        else:
            self._num_dropped["queue"].add()
        return taken

    def close_file(self, file: RotatedFile) -> None:
        """Closes a file after what was queued for it."""
        with self._lock:
            self._queue.append((file, 0, None))
        self._ask()

    def close(self) -> None:
        """Writes all queued records and ends the thread; blocks for a few seconds at most."""
        with self._lock:
            self._closed = True
        if not self._executor.close(self.clock.now() + _LONGEST_CLOSE_S):
            log.warning("event=request_log_incomplete at=close")
            return
        self._write_queued()
        for file in self._files:
            file.close()

    def _ask(self) -> None:
        with self._lock:
            if self._is_asked:
                return
            self._is_asked = True
        try:
            self._executor.submit(self._write_queued)
        except RuntimeError:  # the server ends, or the system allows no thread now
            with self._lock:
                self._is_asked = False

    def _write_queued(self) -> None:
        with self._lock:
            items = list(self._queue)
            self._queue.clear()
            self._is_asked = False
        touched: dict[int, RotatedFile] = {}
        for file, size_bytes, make in items:
            if make is None:
                file.close()
                with self._lock:
                    self._files.remove(file)
                self._forget_problem(file.prefix)
                continue
            try:
                file.write(make())
                touched[id(file)] = file
            except Exception as error:
                self._note_written(file.prefix, 1, error)
            with self._lock:
                self._num_bytes -= size_bytes
        for file in touched.values():
            file.flush()

    def _note_written(self, prefix: str, num: int, error: Exception | None) -> None:
        """Counts records that are in their file now, or that are lost."""
        if error is None:
            self._num_written.add(num)
            self._forget_problem(prefix)
            return
        self._num_dropped["disk"].add(num)
        if prefix not in self._problems:
            self._problems = {**self._problems, prefix: str(error)}
            log.error(
                "event=request_log_unwritable prefix=%s problem=%s", prefix, error
            )

    def _forget_problem(self, prefix: str) -> None:
        if prefix in self._problems:
            self._problems = {p: e for p, e in self._problems.items() if p != prefix}


_OVERHEAD_BYTES = 512  # what a queued record takes beside request and response


class SampledLog:
    """Writes a share of the requests it sees. Thread-safe.

    Args:
        rate: The share, 0 to 1.
        prefix: What the names of its files begin with.
        writer: Writes the sampled requests.
        sample: Returns uniform numbers in [0, 1).

    """

    def __init__(
        self,
        rate: float,
        prefix: str,
        writer: LogWriter,
        sample: Callable[[], float],
    ) -> None:
        self.rate = rate
        self._writer = writer
        self._file = writer.open(prefix)
        self._sample = sample

    def log(self, answered: AnsweredRequest) -> None:
        """Samples a request; copies it, because it belongs to the transport."""
        if self._sample() >= self.rate:
            return
        request, response = answered.record()
        response = response if isinstance(response, bytes) else b"".join(response)
        self._writer.submit(
            self._file,
            len(request) + len(response) + _OVERHEAD_BYTES,
            functools.partial(
                write_prediction_log,
                answered.method,
                ModelSpec(answered.model, answered.version, None, answered.signature),
                int(self._writer.clock.wall_s()),
                self.rate,
                bytes(request),
                response,
            ),
        )

    def close(self) -> None:
        """Ends when all sampled requests are written."""
        self._writer.close_file(self._file)


# What a config asks of this server: the rate, and what the files' names begin with.
_Key: TypeAlias = tuple[float, str]


class RequestLogs:
    """The loggers of all models. Confined to one thread, except ``SampledLog.log``.

    Args:
        writer: Writes the records.
        dc: The data centre of this server, for per-task sampling.
        task_index: The number of this server there; None if it has none.
        sample: Returns uniform numbers in [0, 1).

    """

    def __init__(
        self,
        writer: LogWriter,
        *,
        dc: str = "",
        task_index: int | None = None,
        sample: Callable[[], float] = random.random,
    ) -> None:
        self._writer = writer
        self._dc = dc
        self._task_index = task_index
        self._sample = sample
        self._loggers: dict[_Key, SampledLog] = {}

    def update(
        self, configs: Mapping[str, Sequence[LoggingConfig]]
    ) -> dict[str, tuple[RequestLog, ...]]:
        """Returns the logger of each model from now on; closes those that are not used."""
        keys = {
            model: dict.fromkeys(map(self._key_of, many))
            for model, many in configs.items()
        }
        wanted = {key for many in keys.values() for key in many}
        before = self._loggers
        self._loggers = {key: before.get(key) or self._make(*key) for key in wanted}
        for key in before.keys() - wanted:
            before[key].close()
        return {
            model: tuple(self._loggers[key].log for key in many)
            for model, many in keys.items()
            if many
        }

    def close(self) -> None:
        """Closes every logger."""
        self.update({})

    def _key_of(self, config: LoggingConfig) -> _Key:
        rate = _rate_for(config.sampling_config, self._dc, self._task_index)
        return rate, config.log_collector_config.filename_prefix

    def _make(self, rate: float, prefix: str) -> SampledLog:
        return SampledLog(rate, prefix, self._writer, self._sample)


def _rate_for(sampling: SamplingConfig, dc: str, task_index: int | None) -> float:
    """Returns the rate of one server: that of the first task which it may be."""
    for task in sampling.per_task_sampling_configs:
        index = task.task_index if task.HasField("task_index") else None
        if task.dc in ("", dc) and index in (None, task_index):
            return task.sampling_rate
    return sampling.sampling_rate


FIELD_BY_METHOD: Final = {
    "Classify": 2,
    "Regress": 3,
    "MultiInference": 4,
    "Predict": 6,
}
"""The member of ``log_type`` for each RPC."""

_TAGS: Final = ("serve",)
"""How TensorFlow Serving tags what it serves; readers of its logs may select by that."""


def write_prediction_log(
    method: str,
    spec: ModelSpec,
    timestamp_s: int,
    sampling_rate: float,
    request: bytes,
    response: bytes,
) -> bytes:
    """Returns the serialized log entry. Thread-safe.

    Args:
        method: A key of :data:`FIELD_BY_METHOD`.
        spec: Which version and signature answered.
        timestamp_s: When, in seconds since the epoch.
        sampling_rate: Which share of the requests is logged, 0 to 1.
        request: The request as it was received.
        response: The reply as it was sent.

    """
    metadata = logging_pb2.LogMetadata(
        timestamp_secs=timestamp_s, saved_model_tags=_TAGS
    )
    metadata.sampling_config.sampling_rate = sampling_rate
    metadata.model_spec.ParseFromString(write_model_spec(spec))
    heads = [
        wire.tag(number, wire.DELIMITED) + wire.varint(len(part))
        for number, part in ((1, request), (2, response))
    ]
    size = sum(map(len, heads)) + len(request) + len(response)
    # Joined once: other threads go on while Python does that.
    return b"".join(
        (
            wire.delimited(1, metadata.SerializeToString()),
            wire.tag(FIELD_BY_METHOD[method], wire.DELIMITED) + wire.varint(size),
            heads[0],
            request,
            heads[1],
            response,
        )
    )
