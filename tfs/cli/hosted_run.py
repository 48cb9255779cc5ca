"""``tfs hosted run``: answers requests for a fleet's models, and keeps its servers in step."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING, Final

from tfs.cli.argument_range import seconds
from tfs.cli.hosted_store import add_fleet_command, controller_of, open_store
from tfs.cli.standard_streams import open_missing_streams
from tfs.core.errors import InvalidArgument

if TYPE_CHECKING:
    import grpc

    from tfs.core.call import ListenerOptions

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_CLOSE_S: Final = 5.0
_ONE_WISH_S: Final = 0.05  # signals that come this close together count as one
_FORCED_EXIT: Final = 130


def add_run(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_fleet_command(
        commands, "run", "answer requests, and keep the fleet's servers in step", _run
    )
    parser.add_argument(
        "--listen",
        default="0.0.0.0:8500",
        metavar="ADDRESS",
        help="HOST:PORT or unix:/path (default 0.0.0.0:8500)",
    )
    parser.add_argument(
        "--only_routes",
        action="store_true",
        help="tell servers nothing: for further routers beside the one that does",
    )
    parser.add_argument(
        "--hedge_budget",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="late requests sent a second time, at most (default 0.05; 0: none)",
    )
    parser.add_argument(
        "--down_after_s",
        type=seconds,
        default=10.0,
        metavar="S",
        help="without a sign of a server, until others take its place (default 10)",
    )
    parser.add_argument(
        "--drain_timeout_s",
        type=seconds,
        default=30.0,
        metavar="S",
        help="how long SIGTERM waits for requests under way (default 30)",
    )
    parser.add_argument(
        "--ssl_config_file",
        default="",
        metavar="FILE",
        help="text SSLConfig with PEM contents: TLS to clients, as tfs serve has it",
    )
    group = parser.add_argument_group("TLS to the servers")
    group.add_argument("--ca", metavar="FILE", help="PEM: trust these authorities")
    group.add_argument("--cert", metavar="FILE", help="PEM: who we are")
    group.add_argument("--key", metavar="FILE", help="PEM: the key of --cert")


def _run(arguments: argparse.Namespace) -> int:
    import signal

    from tfs.core.clock import MonotonicClock
    from tfs.core.line_output import LineOutput
    from tfs.core.log_lines import log_to_stderr
    from tfs.hosted.hedging import HedgeOptions
    from tfs.hosted.job_channels import JobChannels
    from tfs.hosted.service import HostedService, ServiceOptions
    from tfs.hosted.synchronizer import SynchronizerOptions
    from tfs.server.memory.malloc import apply_settings
    from tfs.server.signal_inbox import LOOK, SignalInbox

    open_missing_streams()
    say = LineOutput(sys.stdout).write
    log_to_stderr("info")
    apply_settings()
    options = ServiceOptions(
        (_door(arguments.listen, arguments.ssl_config_file),),
        HedgeOptions(budget=arguments.hedge_budget),
        SynchronizerOptions(
            down_after_s=arguments.down_after_s, only_routes=arguments.only_routes
        ),
    )
    store = open_store(arguments)
    store.read()  # reports a wrong path now, not later
    clock = MonotonicClock()
    channels = JobChannels(_credentials(arguments))
    service = HostedService(store, controller_of(arguments), channels, options, clock)
    with SignalInbox() as inbox:
        inbox.hear_unless_ignored(LOOK)
        inbox.hear(signal.SIGTERM, signal.SIGINT)
        try:
            for address in service.start():
                say(f"tfs: listening on {address}")
            while (name := inbox.receive()) == LOOK.name:
                say(f"tfs: {name}: the store is looked at every second anyway")
            inbox.drop_repeats(_ONE_WISH_S)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, _end_at_once)
            say(f"tfs: {name}: draining; again to end at once")
            drained = service.drain(clock.now() + arguments.drain_timeout_s)
        finally:
            service.close(clock.now() + _CLOSE_S)
            channels.close()
    say("tfs: stopped")
    return 0 if drained else 1


def _end_at_once(number: int, frame: object) -> None:
    os._exit(_FORCED_EXIT)


def _door(address: str, ssl_config_file: str) -> ListenerOptions:
    from tfs.core.call import ListenerOptions
    from tfs.server.tls import TlsFile

    if not re.fullmatch(r"unix:/.+|.+:[0-9]+", address):
        raise InvalidArgument(f"--listen takes HOST:PORT or unix:/path: {address}")
    if ssl_config_file and address.startswith("unix:"):
        raise InvalidArgument(
            "--ssl_config_file is for a TCP port; a socket has no TLS"
        )
    tls = TlsFile(ssl_config_file) if ssl_config_file else None
    return ListenerOptions("grpc", address, tls=tls)


def _credentials(arguments: argparse.Namespace) -> grpc.ChannelCredentials | None:
    if not arguments.ca:
        if arguments.cert or arguments.key:
            raise InvalidArgument("--cert and --key need --ca")
        return None
    from tfs.cli.tls_files import read_credentials

    return read_credentials(arguments.ca, arguments.key, arguments.cert)
