"""``tfs hosted release``: gives a server free that belongs to a fleet."""

from __future__ import annotations

import argparse

from tfs.cli.connection import add_admin_arguments, ask, target_of
from tfs.cli.printing import as_json


def add_release(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "release",
        help="give a server free whose fleet is gone",
        description="Has a server (--source=rpc) forget its fleet, so that another one may "
        "claim it. It goes on serving what it has. A fleet that still names the server "
        "claims it again: say remove-job there first.",
    )
    parser.add_argument("server", metavar="SERVER", help="HOST:PORT or unix:/path")
    add_admin_arguments(parser)
    parser.set_defaults(run=_release)


def _release(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    arguments.address = arguments.server
    request = pb.LeaveFleetRequest()
    reply = ask(arguments, "LeaveFleet", request, pb.LeaveFleetResponse)
    if arguments.json:
        print(as_json(reply))
    elif reply.HasField("claim"):
        print(f"{target_of(arguments)} has left the fleet {reply.claim.name}")
    else:
        print(f"{target_of(arguments)} belonged to no fleet")
    return 0
