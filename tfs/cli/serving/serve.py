"""``tfs serve``: runs a model server until it is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Final

from tfs.cli.argument_range import Subparsers
from tfs.cli.serving.serve_arguments import add_flags, is_true, read_flags
from tfs.core.errors import ResourceExhausted, is_out_of_threads
from tfs.core.system.limits import thread_limits
from tfs.core.system.log_lines import LineOutput, log_to_stderr
from tfs.runtime.process.zygote_process import ZygoteProcess
from tfs.server.options import ServerOptions, SourceKind
from tfs.server.system.malloc import apply_settings
from tfs.server.system.process_settings import (
    drop_thread_binding,
    open_missing_streams,
    raise_file_limit,
    warn_of_group_kills,
)
from tfs.server.system.signal_inbox import LOOK, SignalInbox

if TYPE_CHECKING:
    from tfs.server.process import Say


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve models",
        usage="tfs serve [--flag=value ...]",  # not all of them before each complaint
        allow_abbrev=False,  # a flag of a later release must not change its meaning
        description="Serves the versions of one model, or of those in a config file.",
        epilog="SIGTERM drains and exits 0; a second one ends at once.",
    )
    parser.add_argument(
        "--log_level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="what goes to stderr (default info)",
    )
    parser.add_argument(
        "--version",
        nargs="?",
        const="true",
        default="false",
        metavar="BOOL",
        help="print versions and exit",
    )
    add_flags(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if is_true(arguments.version):
        from tfs.server.system.versions import version_lines

        print("\n".join(version_lines()))
        return 0
    open_missing_streams()
    code = run_below_init()
    if code is not None:
        return code
    say = LineOutput(sys.stdout).write
    with SignalInbox() as inbox:
        inbox.hear_unless_ignored(LOOK)
        return _serve(arguments, inbox, say)


def _serve(arguments: argparse.Namespace, inbox: SignalInbox, say: Say) -> int:
    log_to_stderr(arguments.log_level)
    # torch.package warns of its own use of it, which no operator can change.
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    options = read_flags(arguments)
    with contextlib.suppress(RuntimeError, ValueError, OSError):  # no stderr
        faulthandler.enable()  # a model may crash this process: then it says where
    apply_settings()  # must precede the second thread and any large block
    raise_file_limit()
    drop_thread_binding()  # must precede the zygote, and the import of torch
    warn_of_group_kills()
    # A parent process may have set this signal to be ignored, which children inherit;
    # then the exit codes of our own child processes would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    zygote: ZygoteProcess | None = None
    try:
        # It imports torch at the same time as this process, and not when the first
        # version is loaded, so that the first answer comes a second earlier.
        if _loads_at_start(options):
            zygote = ZygoteProcess()
        # Collecting garbage during the import of hundreds of modules finds none, and
        # would take a tenth of the time.
        gc.disable()
        from tfs.server.process import run_server

        gc.enable()
        code = run_server(options, say, inbox, zygote)
    except (RuntimeError, OSError) as error:
        if not is_out_of_threads(error):
            raise
        raise ResourceExhausted(
            f"no thread or process can be started any more: {thread_limits()}; raise what "
            "is too low: each process that runs models takes a few more "
            "(--num_interpreters)"
        ) from error
    finally:
        if zygote is not None:
            zygote.close()
    _end_beside_calls(code)
    return code


def _end_beside_calls(code: int) -> None:
    """Ends the process if a model still computes in it.

    Nobody waits for that any more. But if a thread returns from torch while Python
    shuts down, C++ ends the process by SIGABRT, with a core dump and without the exit
    code.
    """
    if threading.active_count() == 1:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # full, closed, or None
            stream.flush()
    os._exit(code)


def _loads_at_start(options: ServerOptions) -> bool:
    """Whether versions will be run or measured in processes, and are known already."""
    if options.source is SourceKind.RPC:
        from tfs.server.fleet_source import awaits_fleet

        if awaits_fleet(options):
            return False
    return options.loads_in_processes


_KEPT: Final = frozenset(
    {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}
)


def run_below_init() -> int | None:
    """Forks if this is process 1, and waits in it for all processes, until the server ends.

    To be called while there is one thread.

    Returns:
        None in the process that is to become the server; in process 1, the status with
        which to exit.

    """
    return wait_for_child() if os.getpid() == 1 else None


def wait_for_child() -> int | None:
    """Forks, and reaps whatever becomes a child of this process; see ``run_below_init``."""
    passed_on = signal.valid_signals() - _KEPT
    # A signal that comes meanwhile waits until there is somebody to pass it on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    server = os.fork()
    if server == 0:
        # Out of the terminal's group: else Ctrl-C would reach it twice.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
        return None
    for number in passed_on:
        # The C library keeps some real-time signals to itself.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, lambda number, _: os.kill(server, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    while True:
        pid, status = os.wait()
        if pid == server:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
