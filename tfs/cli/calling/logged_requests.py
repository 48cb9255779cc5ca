"""Reads request logs, for commands."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tfs.core.errors import DataLoss, FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from tfs.proto.tensorflow_serving.apis import prediction_log_pb2


class LoggedRequests:
    """The entries of request logs, in order. Iterate once.

    Only what a file contained when this was made is read. A server may log the requests
    that are read here, and the answers to them, to the same files meanwhile.

    If something is wrong with a file, that is printed to stderr, and the next file is
    read. A file that a killed server left, or that is still being written, may end
    inside a record.

    Attributes:
        num_damaged: How many files could not be read to their end so far.
        num_bytes: Size of all files; None if one has none, like a pipe.
        num_bytes_read: How many of these were read so far.

    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._sizes = [(path, _size_bytes(path)) for path in paths]
        self.num_damaged = 0
        sizes = [size for _, size in self._sizes if size is not None]
        self.num_bytes = sum(sizes) if len(sizes) == len(self._sizes) else None
        self.num_bytes_read = 0

    def __iter__(self) -> Iterator[tuple[str, prediction_log_pb2.PredictionLog]]:
        """Yields where each entry is (the file and the record), and the entry.

        Raises:
            FailedPrecondition: A file cannot be read.
            InvalidArgument: A record is not a PredictionLog.

        """
        from tfs.codec.tfrecord import read_records

        for path, num_bytes in self._sizes:
            try:
                with open(path, "rb") as file:
                    records = read_records(file, num_bytes=num_bytes)
                    for index, record in enumerate(records):
                        where = f"{path}, record {index}"
                        self.num_bytes_read += len(record)
                        yield where, _entry(record, where)
            except OSError as error:
                raise FailedPrecondition(f"{path}: {error.strerror}") from error
            except DataLoss as error:
                self.num_damaged += 1
                print(f"tfs: DATA_LOSS: {path}: {error.message}", file=sys.stderr)


def _entry(record: bytes, where: str) -> prediction_log_pb2.PredictionLog:
    from google.protobuf.message import DecodeError

    from tfs.proto.tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    try:
        return PredictionLog.FromString(record)
    except DecodeError as error:
        raise InvalidArgument(f"{where} is no PredictionLog") from error


def _size_bytes(path: str) -> int | None:
    """Returns the present size of a file; None if it has none, like a pipe."""
    try:
        found = os.stat(path)
    except OSError:
        return None  # opening it will raise the error
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def num_records(text: str) -> int:
    """Reads how many records a command may take, for ``argparse``."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number, at least 0, not {text!r}")
    return int(text)
