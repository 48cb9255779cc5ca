"""The destinations of sampled requests, by ``log_collector_config.type``.

(TensorFlow Serving: core/log_collector.h.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tfs.core.errors import AlreadyExists, NotFound
from tfs.server.request_log.log_writer import LogWriter

FILE: Final = "file"
DEFAULT_TYPE: Final = ""


class LogCollector(Protocol):
    """Takes records. Thread-safe; never blocks, never raises."""

    def collect(self, size_bytes: int, make: Callable[[], bytes]) -> bool:
        """Takes a record of that size, to be made later; False if it was dropped."""
        ...

    def close(self) -> None:
        """Ends when all records that were taken are written."""
        ...


MakeCollector = Callable[[str], LogCollector]
"""Makes a collector for a ``filename_prefix``."""


class FileCollector:
    """Writes rotated TFRecord files through the log writer. Thread-safe."""

    def __init__(self, writer: LogWriter, filename_prefix: str) -> None:
        self._writer = writer
        self._file = writer.open(filename_prefix)

    def collect(self, size_bytes: int, make: Callable[[], bytes]) -> bool:
        """Queues the record."""
        return self._writer.submit(self._file, size_bytes, make)

    def close(self) -> None:
        """Closes the file after the records that are queued for it."""
        self._writer.close_file(self._file)


class CollectorRegistry:
    """Kinds of collectors by type. Filled at start, then only read."""

    def __init__(self) -> None:
        self._makers: dict[str, MakeCollector] = {}

    def register(self, kind: str, make: MakeCollector) -> None:
        """Adds a kind.

        Raises:
            AlreadyExists: There is one of that type.

        """
        if kind in self._makers:
            raise AlreadyExists(f"Type {kind} already registered.")
        self._makers[kind] = make

    def create(self, kind: str, filename_prefix: str) -> LogCollector:
        """Returns a new collector.

        Raises:
            NotFound: There is no such type.

        """
        make = self._makers.get(kind)
        if make is None:
            raise NotFound(f"Cannot find LogCollector::Factory for type: {kind}")
        return make(filename_prefix)


def file_collectors(writer: LogWriter) -> CollectorRegistry:
    """Returns a registry of the kinds that are built in."""
    registry = CollectorRegistry()
    for kind in (DEFAULT_TYPE, FILE):
        registry.register(kind, lambda prefix: FileCollector(writer, prefix))
    return registry
