"""The ``tfs`` command: finds the subcommand, turns errors into one clear line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from tfs.core.errors import ServingError

COMMANDS: Final = {
    "serve": "serving.serve",
    "package": "package",
    "predict": "calling.predict",
    "metadata": "calling.metadata",
    "warmup": "calling.warmup",
    "statistics": "calling.statistics",
    "replay": "calling.replay",
    "tune": "calling.tune",
    "status": "operating.status",
    "models": "operating.status",
    "canary": "operating.canary",
    "promote": "operating.canary",
    "rollback": "operating.canary",
    "retry": "operating.canary",
    "page": "operating.page",
    "reload": "operating.config",
    "config": "operating.config",
    "hosted": "hosted.command",
}
"""The module below ``tfs.cli`` that has each command; only that one is imported for it."""

_INTERRUPTED: Final = 130
"""The exit code of a command that Ctrl-C ended, as in shells."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code.

    0 is success, 1 a failure that was explained in one line, 2 a wrong command line, 130
    an end by Ctrl-C.
    """
    words = sys.argv[1:] if argv is None else argv
    parser = make_parser(words[0] if words else "")
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        # argparse would put the usage of every flag in front of this line.
        called = f"tfs {arguments.command}" if arguments.command else "tfs"
        meant = None
        if arguments.command == "serve":
            from tfs.cli.serving.serve_arguments import flag_meant_by

            meant = flag_meant_by(unknown[0])
        hint = f"did you mean {meant}? " if meant else ""
        print(
            f"{called}: unknown argument {unknown[0]}; {hint}{called} --help lists all",
            file=sys.stderr,
        )
        return 2
    if arguments.wants_versions:
        from tfs.server.system.versions import version_lines

        print("\n".join(version_lines()))
        return 0
    if arguments.run is None:
        parser.print_help()
        return 2
    return _run(arguments)


def make_parser(command: str = "") -> argparse.ArgumentParser:
    """Returns the parser of a command, or of all if there is none with that name."""
    parser = argparse.ArgumentParser(
        prog="tfs", description="Serves PyTorch models behind TensorFlow Serving's API."
    )
    parser.set_defaults(run=None)
    parser.add_argument(
        "--version",
        action="store_true",
        dest="wants_versions",
        help="print versions and exit",
    )
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command"
    )
    modules = [COMMANDS[command]] if command in COMMANDS else COMMANDS.values()
    for module in dict.fromkeys(modules):
        importlib.import_module(f"tfs.cli.{module}").add_parser(subparsers)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    """Runs the chosen command; a failure becomes one line on stderr."""
    try:
        return int(arguments.run(arguments))
    except ServingError as error:
        print(f"tfs: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "tfs":
            raise
        print(
            f"tfs: the package {error.name!r} is not installed in {sys.prefix}; "
            "install TFS with its dependencies (see README.md)",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe: no error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
