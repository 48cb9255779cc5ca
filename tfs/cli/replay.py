"""``tfs replay``: sends a request log to a server and compares the answers."""

from __future__ import annotations

import argparse
import itertools
from typing import Final

from tfs.cli.argument_range import version_number
from tfs.cli.connection import add_connection_flags, connect
from tfs.cli.logged_requests import LoggedRequests, num_records
from tfs.core.errors import ServingError, Unavailable

_MAX_SHOWN: Final = 10
_MAX_UNREACHED: Final = 3
"""So many requests in a row without an answer end the replay."""

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
        "compares what it answers with what was logged. Ends with 0 if every file was "
        "read to its end and every answer is the same.",
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
        "--max_records", type=num_records, default=None, help="stop after so many"
    )
    add_connection_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from tfs.client.replay import Tolerance, difference, exchange_of
    from tfs.client.requests import Target

    instead = Target(arguments.model, arguments.version, arguments.label)
    tolerance = Tolerance(arguments.rtol, arguments.atol)
    logged = LoggedRequests(arguments.files)
    num_same = num_others = num_unknown = num_untaken = num_in_a_row = 0
    try:
        with connect(arguments) as client:
            for where, entry in itertools.islice(logged, arguments.max_records):
                exchange = exchange_of(entry, instead)
                if exchange is None:
                    continue
                try:
                    answer = client.send(
                        exchange.method, exchange.request, idempotent=True
                    )
                except Unavailable as error:  # the client has tried for a while
                    num_untaken += 1
                    num_in_a_row += 1
                    if num_in_a_row == _MAX_UNREACHED:
                        raise
                    if num_others + num_untaken <= _MAX_SHOWN:
                        print(f"{where}: {error}")
                    continue
                except ServingError as error:
                    num_in_a_row = 0
                    found = str(error)
                else:
                    num_in_a_row = 0
                    if exchange.response is None:
                        num_unknown += 1
                        continue
                    found = difference(
                        exchange.method, exchange.response, answer, tolerance
                    )
                if not found:
                    num_same += 1
                    continue
                num_others += 1
                if num_others + num_untaken <= _MAX_SHOWN:
                    print(f"{where}: {found}")
    except ServingError:  # no server answers, or a file is no log
        if num_same or num_others or num_unknown:
            print(_summary(num_same, num_others, num_unknown, num_untaken))
        raise
    print(_summary(num_same, num_others, num_unknown, num_untaken))
    return 1 if num_others or num_untaken or logged.num_damaged else 0


def _summary(num_same: int, num_others: int, num_unknown: int, num_untaken: int) -> str:
    num_sent = num_same + num_others + num_unknown
    summary = f"{num_sent} sent, {num_same} same, {num_others} not"
    if num_unknown:  # warm-up files contain requests without answers
        summary += f", {num_unknown} logged without an answer to compare"
    if num_untaken:
        summary += f"; {num_untaken} that no server took"
    return summary
