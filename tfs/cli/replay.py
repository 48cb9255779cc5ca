"""``tfs replay``: sends a request log to a server and compares the answers."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tfs.cli.connection import add_connection_flags, connect
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
)

if TYPE_CHECKING:
    from tfs.proto.tensorflow_serving.apis import prediction_log_pb2

_MAX_SHOWN = 10

_EPILOG = """\
examples
  tfs replay /logs/digits-*.tfrecord
  tfs replay /logs/digits-*.tfrecord --version 2 --rtol 1e-3
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "replay",
        help="send a request log again, compare the answers",
        description="Sends logged requests to a server, one after the other, and "
        "compares what it answers with what was logged. Ends with 0 if every answer "
        "is the same.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="TFRecord files")
    parser.add_argument("--model", default="", help="ask this model instead")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=int, help="ask this version instead")
    which.add_argument("--label", help="ask the version this label means instead")
    parser.add_argument(
        "--rtol", type=float, default=1e-5, help="relative, of floats (default 1e-5)"
    )
    parser.add_argument(
        "--atol", type=float, default=1e-6, help="absolute, of floats (default 1e-6)"
    )
    parser.add_argument(
        "--max_records", type=int, default=None, help="stop after so many"
    )
    add_connection_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from tfs.client.replay import Tolerance, difference, exchange_of
    from tfs.client.requests import Target

    instead = Target(arguments.model, arguments.version, arguments.label)
    tolerance = Tolerance(arguments.rtol, arguments.atol)
    entries = itertools.islice(read_logs(arguments.files), arguments.max_records)
    num_same = 0
    problems: list[str] = []
    try:
        with connect(arguments) as client:
            for index, entry in enumerate(entries):
                exchange = exchange_of(entry, instead)
                if exchange is None:
                    continue
                try:
                    answer = client.send(
                        exchange.method, exchange.request, idempotent=True
                    )
                except ServingError as error:
                    found = str(error)
                else:
                    found = difference(
                        exchange.method, exchange.response, answer, tolerance
                    )
                if not found:
                    num_same += 1
                    continue
                problems.append(found)
                if len(problems) <= _MAX_SHOWN:
                    print(f"record {index}: {found}")
    except ServingError:  # a file is damaged, or still being written
        if num_same or problems:
            print(_summary(num_same, len(problems)))
        raise
    print(_summary(num_same, len(problems)))
    return 1 if problems else 0


def _summary(num_same: int, num_others: int) -> str:
    return f"{num_same + num_others} sent, {num_same} same, {num_others} not"


def read_logs(paths: Sequence[str]) -> Iterator[prediction_log_pb2.PredictionLog]:
    """Yields the entries of request logs, in order.

    Raises:
        FailedPrecondition: A file cannot be read.
        InvalidArgument: A record is no PredictionLog.
        DataLoss: A file is no TFRecord file, or cut off; names it, and what comes
            before was yielded.

    """
    from google.protobuf.message import DecodeError

    from tfs.codec.tfrecord import read_records
    from tfs.proto.tensorflow_serving.apis import prediction_log_pb2

    for path in paths:
        try:
            file = open(path, "rb")  # noqa: SIM115  # closed below
        except OSError as error:
            raise FailedPrecondition(f"{path}: {error.strerror}") from error
        with file:
            try:
                for index, record in enumerate(read_records(file)):
                    try:
                        entry = prediction_log_pb2.PredictionLog.FromString(record)
                    except DecodeError as error:
                        raise InvalidArgument(
                            f"{path}: record {index} is no PredictionLog"
                        ) from error
                    yield entry
            except DataLoss as error:
                raise DataLoss(f"{path}: {error.message}") from error
