"""Decides which requests of which models are logged.

Models with equal settings share a logger. (TensorFlow Serving: core/server_request_logger.cc, request_logger.cc.)
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence

from tfs.codec.model_spec import ModelSpec
from tfs.codec.prediction_log import write_prediction_log
from tfs.handlers.limits.model_gate import Record, RequestLog
from tfs.server.model_settings import LoggingSettings
from tfs.server.request_log.log_writer import LogWriter

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

    def log(
        self,
        method: str,
        model: str,
        version: int,
        signature: str,
        record: Record,
    ) -> None:
        """Samples a request; copies it, because it belongs to the transport."""
        if self._sample() >= self.rate:
            return
        request, response = record()
        response = response if isinstance(response, bytes) else b"".join(response)
        self._writer.submit(
            self._file,
            len(request) + len(response) + _OVERHEAD_BYTES,
            functools.partial(
                write_prediction_log,
                method,
                ModelSpec(model, version, None, signature),
                int(self._writer.clock.wall_s()),
                self.rate,
                bytes(request),
                response,
            ),
        )

    def close(self) -> None:
        """Ends when all sampled requests are written."""
        self._writer.close_file(self._file)


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
        self._loggers: dict[LoggingSettings, SampledLog] = {}

    def update(
        self, settings: Mapping[str, Sequence[LoggingSettings]]
    ) -> dict[str, tuple[RequestLog, ...]]:
        """Returns the logger of each model from now on; closes those that are not used."""
        wanted = {each for many in settings.values() for each in many}
        before = self._loggers
        self._loggers = {
            each: before[each] if each in before else self._make(each)
            for each in wanted
        }
        for each in before.keys() - wanted:
            before[each].close()
        return {
            model: tuple(self._loggers[each] for each in many)
            for model, many in settings.items()
            if many
        }

    def close(self) -> None:
        """Closes every logger."""
        self.update({})

    def _make(self, settings: LoggingSettings) -> SampledLog:
        rate = settings.rate_for(self._dc, self._task_index)
        prefix = settings.filename_prefix
        return SampledLog(rate, prefix, self._writer, self._sample)
