"""``tfs reload``: makes a file the configuration of a running server."""

from __future__ import annotations

import argparse
from typing import Final

from tfs.cli.admin_client import add_connection_arguments, ask
from tfs.cli.change_report import apply_lines
from tfs.cli.printing import as_json, emit
from tfs.core.errors import Code

_UNKNOWN: Final = int(Code.UNKNOWN)


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "reload",
        help="give a running server another configuration",
        description="Makes FILE the base of the configuration, all or nothing, and "
        "waits until its models answer or have failed. It does not survive a restart: "
        "that takes an edit of --model_config_file.",
    )
    parser.add_argument("file", metavar="FILE", help="a text ModelServerConfig")
    parser.add_argument(
        "--dry_run", action="store_true", help="only say what would change"
    )
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the outcome for each model; 0 if all of them are available."""
    from tfs.server.config.config_file import read_config_file

    return send(arguments, read_config_file(arguments.file), arguments.dry_run)


def send(arguments: argparse.Namespace, text: str, validate_only: bool) -> int:
    """Sends a configuration and prints the outcome; 0 if nothing is wrong."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.ApplyConfigRequest(
        text=text, validate_only=validate_only, text_name=arguments.file
    )
    reply = ask(arguments, "ApplyConfig", request, pb.ApplyConfigResponse)
    if arguments.json:
        print(as_json(reply))
    else:
        emit(apply_lines(reply))
        num_bad = sum(each.status.code != 0 for each in reply.models)
        if reply.status.code == _UNKNOWN and reply.applied and num_bad:
            # The table shows the reasons already. They name memory and paths, and are
            # too long to print twice.
            print(
                f"applied: {num_bad} model(s) did not become available as configured, "
                "see above"
            )
        elif reply.status.code:
            verb = "applied" if reply.applied else "refused"
            print(f"{verb}: {reply.status.message}")
        else:
            print("valid" if validate_only else "applied")
    return 1 if reply.status.code else 0
