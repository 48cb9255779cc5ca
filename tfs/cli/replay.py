"""``tfs replay``: sends a request log to a server and compares the answers."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tfs.cli.argument_range import version_number
from tfs.cli.connection import add_connection_flags, connect
from tfs.cli.logged_requests import LoggedRequests, num_records
from tfs.core.errors import ServingError, Unavailable

if TYPE_CHECKING:
    from tfs.client import Client
    from tfs.client.replay import Exchange, Tolerance

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
    from tfs.client.replay import Tolerance, exchange_of
    from tfs.client.requests import Target

    instead = Target(arguments.model, arguments.version, arguments.label)
    tolerance = Tolerance(arguments.rtol, arguments.atol)
    logged = LoggedRequests(arguments.files)
    tally = _Tally()
    try:
        with connect(arguments) as client:
            for where, entry in itertools.islice(logged, arguments.max_records):
                exchange = exchange_of(entry, instead)
                if exchange is not None:
                    _send_again(client, exchange, tolerance, where, tally)
    except ServingError:  # no server answers, or a file is no log
        if tally.num_sent:
            print(tally.summary())
        raise
    print(tally.summary())
    return 1 if tally.num_others or tally.num_untaken or logged.num_damaged else 0


def _send_again(
    client: Client, exchange: Exchange, tolerance: Tolerance, where: str, tally: _Tally
) -> None:
    """Sends a logged request again, and counts how its answer compares.

    Raises:
        Unavailable: No server took this request and those before it.

    """
    try:
        found = _difference(client, exchange, tolerance)
    except Unavailable as error:  # the client has tried for a while
        tally.num_untaken += 1
        tally.num_in_a_row += 1
        if tally.num_in_a_row == _MAX_UNREACHED:
            raise
        tally.show(where, str(error))
        return
    tally.num_in_a_row = 0
    tally.count(where, found)


def _difference(client: Client, exchange: Exchange, tolerance: Tolerance) -> str | None:
    """Sends a logged request again and returns how its answer differs from the logged one.

    Returns:
        "" if it does not differ, None if no answer was logged with the request.

    Raises:
        Unavailable: No server takes the request.

    """
    from tfs.client.replay import difference

    try:
        answer = client.send(exchange.method, exchange.request, idempotent=True)
    except Unavailable:
        raise
    except ServingError as error:
        return str(error)
    if exchange.response is None:
        return None
    return difference(exchange.method, exchange.response, answer, tolerance)


@dataclass(slots=True)
class _Tally:
    """Counts how answers compare with those logged, and prints the first that differ.

    Attributes:
        num_same: Requests whose answer was the same.
        num_others: Requests whose answer was another one, or an error.
        num_unknown: Requests that were logged without an answer.
        num_untaken: Requests that no server took.
        num_in_a_row: Those of them since a server last took one.

    """

    num_same: int = 0
    num_others: int = 0
    num_unknown: int = 0
    num_untaken: int = 0
    num_in_a_row: int = 0

    @property
    def num_sent(self) -> int:
        """How many requests a server answered."""
        return self.num_same + self.num_others + self.num_unknown

    def count(self, where: str, found: str | None) -> None:
        """Counts one answered request, of which ``found`` is what :func:`_difference` said."""
        if found is None:
            self.num_unknown += 1
        elif not found:
            self.num_same += 1
        else:
            self.num_others += 1
            self.show(where, found)

    def show(self, where: str, what: str) -> None:
        """Prints what is wrong with one request, unless enough have been printed."""
        if self.num_others + self.num_untaken <= _MAX_SHOWN:
            print(f"{where}: {what}")

    def summary(self) -> str:
        """Returns the counts as a sentence."""
        summary = f"{self.num_sent} sent, {self.num_same} same, {self.num_others} not"
        if self.num_unknown:  # warm-up files contain requests without answers
            summary += f", {self.num_unknown} logged without an answer to compare"
        if self.num_untaken:
            summary += f"; {self.num_untaken} that no server took"
        return summary
