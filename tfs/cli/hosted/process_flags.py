"""The flags of ``tfs hosted up`` and ``run``, which are the processes of a fleet."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable
from typing import Final

from tfs.cli.argument_range import Subparsers, replicas, seconds, size
from tfs.cli.connection import add_tls_arguments
from tfs.cli.hosted.controller import DEFAULT_CONTROLLER
from tfs.cli.hosted.flag import flag

STORE_VARIABLE: Final = "TFS_HOSTED_STORE"
MOST_SERVERS: Final = 8
"""So many does ``tfs hosted up`` start at most."""


def add_up(commands: Subparsers) -> None:
    """Adds ``tfs hosted up``."""
    what = "run a whole fleet on this machine: servers, router and controller"
    parser = _add_process(commands, "up", what)
    what = "its state and its processes' files (default ./tfs-fleet)"
    flag(parser, "--folder FOLDER", what, "tfs-fleet")
    what = (
        f"equal servers, up to {MOST_SERVERS}; 2-6: two, and up to six when models want "
        "so many (default 2, or as it was)"
    )
    flag(parser, "--servers N[-M]", what, None, replicas)
    what = (
        "what all models may take, on all servers together (default: half of what the "
        "machine has, or as it was)"
    )
    flag(parser, "--memory SIZE", what, None, size)
    _add_doors(parser, "models in --folder")
    parser.add_argument(
        "--router",
        choices=("python", "envoy"),
        default="python",
        help="what answers requests (default python)",
    )
    flag(parser, "--server_flags FLAGS", "further flags of tfs serve for all servers")


def add_run(commands: Subparsers) -> None:
    """Adds ``tfs hosted run``."""
    what = "answer requests, and keep the fleet's servers in step"
    parser = _add_process(commands, "run", what)
    what = (
        "the fleet's state: a file on this machine, or postgresql://HOST/DATABASE "
        f"(default ${STORE_VARIABLE})"
    )
    flag(parser, "--store FILE|URL", what, os.environ.get(STORE_VARIABLE, ""))
    _add_doors(parser, "none")
    what = (
        "where a key for commands over HTTP is written at the start (default: "
        "certificates alone count)"
    )
    flag(parser, "--control_key FILE", what)
    what = "keep a copy of the wanted state here, to start with while the store is away"
    flag(parser, "--copy FILE", what)
    what = "take no commands and tell servers nothing: only a router"
    flag(parser, "--only_routes", what)
    what = "take servers from another fleet, or from a newer copy of this one's store"
    flag(parser, "--take_over", what)
    what = "start the servers of jobs on this Ray cluster: HOST:PORT, or auto"
    flag(parser, "--ray ADDRESS", what)
    what = "scale the StatefulSets of jobs in this namespace"
    flag(parser, "--kubernetes NAMESPACE", what)
    what = "with --ray: where each node keeps files of servers"
    flag(parser, "--jobs_folder FOLDER", what, "/tmp/tfs-jobs")
    what = "with --ray: further flags of tfs serve for all servers"
    flag(parser, "--server_flags FLAGS", what)
    what = "late requests sent a second time, at most (default 0.05; 0: none)"
    flag(parser, "--hedge_budget SHARE", what, 0.05, float)
    what = "route by Envoy, with its files in this folder, instead of in Python"
    flag(parser, "--envoy FOLDER", what)
    what = "with --envoy: when a late request is sent a second time"
    flag(parser, "--hedge_after_s S", what, 0.2, seconds)
    what = "where gRPC clients of xds:///MODEL ask for its servers (default nowhere)"
    flag(parser, "--xds ADDRESS", what)
    what = "without a sign of a server, until others take its place"
    flag(parser, "--down_after_s S", what, 10, seconds)
    what = "how long SIGTERM waits for requests under way"
    flag(parser, "--drain_timeout_s S", what, 30, seconds)
    what = "text SSLConfig with PEM contents: TLS to clients, as tfs serve has it"
    flag(parser, "--ssl_config_file FILE", what)
    add_tls_arguments(parser.add_argument_group("TLS to the servers"))


def _add_process(commands: Subparsers, name: str, what: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=what, description=f"{what.capitalize()}.")
    parser.set_defaults(run=runner(name))
    return parser


def runner(name: str) -> Callable[[argparse.Namespace], int]:
    """Returns the function of a name in the module of its name, imported when it runs."""

    def run(arguments: argparse.Namespace) -> int:
        module = importlib.import_module(f"tfs.cli.hosted.{name}")
        return int(getattr(module, name)(arguments))

    return run


def _add_doors(parser: argparse.ArgumentParser, default_store: str) -> None:
    """Adds where requests are answered, where and how commands are taken, and uploads go."""
    what = "where requests are answered: HOST:PORT or unix:/path"
    flag(parser, "--listen ADDRESS", what, "0.0.0.0:8500")
    flag(parser, "--control ADDRESS", "where commands are taken", DEFAULT_CONTROLLER)
    what = "where commands are taken over HTTP too, as JSON (default nowhere)"
    flag(parser, "--control_http ADDRESS", what)
    what = "text SSLConfig with PEM contents: TLS where commands are taken"
    flag(parser, "--control_ssl_config_file FILE", what)
    what = (
        "JSON: roles and quotas by the name of the client certificate (default: whoever "
        "has a verified one may do everything)"
    )
    flag(parser, "--identities FILE", what)
    parser.add_argument(
        "--model_store",
        action="append",
        default=[],
        metavar="[PARTITION=]PLACE",
        help="folder or URL to which tfs hosted upload copies versions of new models, "
        f"the same for all servers (default {default_store})",
    )
