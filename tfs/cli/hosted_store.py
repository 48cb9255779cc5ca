"""The state of a fleet, as commands below ``tfs hosted`` find it."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from tfs.core.errors import InvalidArgument

if TYPE_CHECKING:
    from tfs.hosted.controller import Controller
    from tfs.hosted.fleet_store import FleetStore

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

STORE_VARIABLE: Final = "TFS_HOSTED_STORE"


def add_fleet_command(
    commands: Subparsers, name: str, what: str, run: object
) -> argparse.ArgumentParser:
    """Adds a command that reads or changes the state of a fleet; returns its parser."""
    parser = commands.add_parser(name, help=what, description=f"{what.capitalize()}.")
    parser.add_argument(
        "--store",
        default=os.environ.get(STORE_VARIABLE, ""),
        metavar="FILE",
        help=f"the fleet's state (default ${STORE_VARIABLE})",
    )
    parser.set_defaults(run=run)
    return parser


def open_store(arguments: argparse.Namespace) -> FleetStore:
    """Returns the store that the command line names.

    Raises:
        InvalidArgument: It names none.

    """
    from tfs.hosted.fleet_store import FleetStore

    if not arguments.store:
        raise InvalidArgument(
            f"say where the fleet's state is: --store, ${STORE_VARIABLE}"
        )
    return FleetStore(arguments.store)


def controller_of(arguments: argparse.Namespace) -> Controller:
    """Returns what changes the state of the fleet that the command line names."""
    from tfs.hosted.controller import Controller
    from tfs.hosted.memory_estimate import newest_version_bytes
    from tfs.server.config.server_config import read_model

    return Controller(open_store(arguments), read_model, newest_version_bytes)
