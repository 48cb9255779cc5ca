"""``tfs replay``: sends request logs to a server and compares the answers; reads logs."""

from __future__ import annotations

import argparse
import itertools
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tfs.cli.argument_range import Subparsers, version_number
from tfs.cli.connection import add_connection_arguments, connect
from tfs.cli.printing import emit, progress, table
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unavailable,
)

if TYPE_CHECKING:
    from tfs.client import Client
    from tfs.client.replay import Difference, Exchange, Tolerance
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


_MAX_UNREACHED: Final = 3
"""So many requests in a row without an answer end the replay."""

_EPILOG = """\
examples
  tfs replay /logs/digits-*.tfrecord
  tfs replay /logs/digits-*.tfrecord --version 2 --rtol 1e-3
"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "replay",
        help="send a request log again, compare the answers",
        description="Sends logged requests to a server, one after the other, and "
        "compares what it answers with what was logged: which outputs differ, in how many "
        "answers and how far. Ends with 0 if there is a request, every file was read to "
        "its end and every answer is the same.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="TFRecord files")
    parser.add_argument("--model", default="", help="ask this model instead")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--version", type=version_number, help="ask this version instead"
    )
    which.add_argument("--label", help="ask the version this label means instead")
    parser.add_argument(
        "--rtol", type=float, default=1e-5, help="relative, of floats (default 1e-5)"
    )
    parser.add_argument(
        "--atol", type=float, default=1e-6, help="absolute, of floats (default 1e-6)"
    )
    parser.add_argument(
        "--samples",
        type=num_records,
        default=10,
        metavar="N",
        help="show the first N whose answers differ (default 10)",
    )
    parser.add_argument(
        "--max_records", type=num_records, default=None, help="stop after so many"
    )
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from tfs.client.replay import Tolerance, exchange_of
    from tfs.client.requests import Target

    instead = Target(arguments.model, arguments.version, arguments.label)
    tolerance = Tolerance(arguments.rtol, arguments.atol)
    logged = LoggedRequests(arguments.files)
    tally = _Tally(arguments.samples)
    try:
        with connect(arguments) as client, progress("sent", logged.num_bytes) as show:
            for where, entry in itertools.islice(logged, arguments.max_records):
                exchange = exchange_of(entry, instead)
                if exchange is not None:
                    _send_again(client, exchange, tolerance, where, tally)
                show(logged.num_bytes_read)
    except ServingError:  # no server answers, or a file is no log
        if tally.num_sent:
            emit(tally.summary())
        raise
    emit(tally.summary())
    wrong = tally.num_others or tally.num_untaken or logged.num_damaged
    return 1 if wrong or not tally.num_sent else 0


def _send_again(
    client: Client, exchange: Exchange, tolerance: Tolerance, where: str, tally: _Tally
) -> None:
    """Sends a logged request again, and counts how its answer compares."""
    from tfs.client.replay import differences

    try:
        answer = client.send(exchange.method, exchange.request, idempotent=True)
    except Unavailable as error:  # the client has tried for a while
        tally.num_untaken += 1
        tally.num_in_a_row += 1
        if tally.num_in_a_row == _MAX_UNREACHED:
            raise
        tally.show(where, [str(error)])
        return
    except ServingError as error:
        tally.count_error(where, error)
    else:
        logged = exchange.response
        tally.count(
            where,
            None
            if logged is None
            else differences(exchange.method, logged, answer, tolerance),
        )
    tally.num_in_a_row = 0


@dataclass(slots=True)
class _Tally:
    """Counts how answers compare with those logged, and prints the first that differ.

    ``by_output`` has, by output, in how many answers it differed, how far at most, and
    where that was; errors are there by code.
    """

    max_shown: int
    num_same: int = 0
    num_others: int = 0
    num_unknown: int = 0  # logged without an answer
    num_untaken: int = 0  # by any server
    num_in_a_row: int = 0  # of these, since a server last took one
    by_output: dict[str, tuple[int, float | None, str]] = field(default_factory=dict)

    @property
    def num_sent(self) -> int:
        """How many requests a server answered."""
        return self.num_same + self.num_others + self.num_unknown

    def count(self, where: str, found: Sequence[Difference] | None) -> None:
        """Counts an answer; ``found`` is None if there is nothing to compare it with."""
        if found is None:
            self.num_unknown += 1
        elif not found:
            self.num_same += 1
        else:
            self.num_others += 1
            for each in found:
                self._note(each.output, each.largest, where)
            self.show(where, list(map(str, found)))

    def count_error(self, where: str, error: ServingError) -> None:
        """Counts an answer that was an error."""
        self.num_others += 1
        self._note(f"({error.code.name})", None, where)
        self.show(where, [str(error)])

    def _note(self, output: str, largest: float | None, where: str) -> None:
        num, most, at = self.by_output.get(output, (0, None, where))
        if largest is not None and (most is None or largest > most):
            most, at = largest, where
        self.by_output[output] = (num + 1, most, at)

    def show(self, where: str, lines: Sequence[str]) -> None:
        """Prints what is wrong with one request, unless enough have been printed."""
        if self.num_others + self.num_untaken <= self.max_shown:
            print(f"{where}: {'; '.join(lines)}")

    def summary(self) -> list[str]:
        """Returns which outputs differ and how far, and the counts as a sentence."""
        rows = [
            (output, num, "-" if most is None else f"{most:.4g}", at)
            for output, (num, most, at) in sorted(self.by_output.items())
        ]
        heads = ("OUTPUT", "REQUESTS", "LARGEST DIFFERENCE", "IN")
        lines = [table(heads, rows)] if rows else []
        if not self.num_sent + self.num_untaken:
            return ["nothing was sent: no request was found"]
        counts = f"{self.num_sent} sent, {self.num_same} same, {self.num_others} not"
        if self.num_unknown:  # warm-up files contain requests without answers
            counts += f", {self.num_unknown} logged without an answer to compare"
        if self.num_untaken:
            counts += f"; {self.num_untaken} that no server took"
        return [*lines, counts]
