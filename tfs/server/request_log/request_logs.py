"""Decides which requests of which models are logged.

Models with equal settings share a logger. (TensorFlow Serving: core/server_request_logger.cc, request_logger.cc.)
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tfs.codec.model_spec import ModelSpec
from tfs.codec.prediction_log import write_prediction_log
from tfs.core.clock import Clock
from tfs.handlers.limits.model_gate import Record, RequestLog
from tfs.server.model_settings import LoggingSettings

_OVERHEAD_BYTES = 512  # what a queued record takes beside request and response


class LogCollector(Protocol):
    """Takes the records of one log. Thread-safe; never blocks, never raises."""

    def collect(self, size_bytes: int, make: Callable[[], bytes]) -> bool:
        """Takes a record of that size, to be made later; False if it was dropped."""
        ...

    def close(self) -> None:
        """Ends when all records that were taken are written."""
        ...


class SampledLog:
    """Writes a share of the requests it sees. Thread-safe.

    Args:
        rate: The share, 0 to 1.
        collector: Takes the sampled requests.
        clock: Tells the time of a request.
        sample: Returns uniform numbers in [0, 1).

    """

    def __init__(
        self,
        rate: float,
        collector: LogCollector,
        clock: Clock,
        sample: Callable[[], float],
    ) -> None:
        self.rate = rate
        self._collector = collector
        self._clock = clock
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
        self._collector.collect(
            len(request) + len(response) + _OVERHEAD_BYTES,
            functools.partial(
                write_prediction_log,
                method,
                ModelSpec(model, version, None, signature),
                int(self._clock.wall_s()),
                self.rate,
                bytes(request),
                response,
            ),
        )

    def close(self) -> None:
        """Ends when all sampled requests are written."""
        self._collector.close()


class RequestLogs:
    """The loggers of all models. Confined to one thread, except ``SampledLog.log``.

    Args:
        make_collector: Makes what takes the records of a ``filename_prefix``.
        clock: For time stamps.
        dc: The data centre of this server, for per-task sampling.
        task_index: The number of this server there; None if it has none.
        sample: Returns uniform numbers in [0, 1).

    """

    def __init__(
        self,
        make_collector: Callable[[str], LogCollector],
        clock: Clock,
        *,
        dc: str = "",
        task_index: int | None = None,
        sample: Callable[[], float] = random.random,
    ) -> None:
        self._make_collector = make_collector
        self._clock = clock
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
        collector = self._make_collector(settings.filename_prefix)
        rate = settings.rate_for(self._dc, self._task_index)
        return SampledLog(rate, collector, self._clock, self._sample)
