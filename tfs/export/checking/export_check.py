"""Tries a version in a fresh process, as a server's worker runs it, before it appears.

The author's program has what no server has: its modules, its command line, what
libraries registered when the model was made. So what works here proves nothing, and
nothing here is hidden or put back: another process just does not have it.

Each program that saves has one process for this.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Final

import torch

from tfs.core.errors import InvalidArgument, Unavailable
from tfs.core.servable import Tensors
from tfs.core.version.version_layout import ARCHIVE
from tfs.export.checking.check_advice import PackagedModules, told
from tfs.export.packaging.module_origin import is_library
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.check_process import CheckResult
from tfs.runtime.process.zygote_process import import_path, worker_environment

_PROGRAM: Final = """
import sys; from tfs.runtime.guest.check_process import main; main(int(sys.argv[2]))
"""


class CheckProcess:
    """A program that tries versions, each in a fork of its own.

    Thread-safe; checks of one program run one after another. Whatever interrupts one
    ends the program, and the next check starts another. It ends with this process.

    Args:
        import_path: Where it may import from, this package's folder among it.

    """

    def __init__(self, import_path: list[str]) -> None:
        self._owner_pid = os.getpid()
        # Guards the socket; leaf. Held while a version is tried.
        self._lock = threading.Lock()
        self._socket, theirs = control_channel.pair()
        for each in (self._socket, theirs):
            each.settimeout(None)  # whatever the author's program has as a default
        fd = theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                # The command line looks like a worker's.
                [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), str(fd), "0"],
                env={
                    **worker_environment(),
                    "PYTHONPATH": os.pathsep.join(import_path),
                },
                stdin=subprocess.DEVNULL,
                pass_fds=(fd,),
                process_group=0,  # Ctrl-C is for the author's program
            )

    @property
    def is_usable(self) -> bool:
        """Whether it was started by this process and takes requests."""
        return (
            self._owner_pid == os.getpid()
            and self._socket.fileno() >= 0
            and self._process.poll() is None
        )

    def run(self, request: Mapping[str, object]) -> int:
        """Tries one version and returns the status of its process. Blocks.

        Raises:
            Unavailable: The program ended.

        """
        with self._lock:
            try:
                control_channel.send(self._socket, json.dumps(request).encode())
                answer = control_channel.receive(self._socket)
                if answer is None:
                    raise EOFError("no answer")
                return int(answer[0])
            except BaseException as error:
                self.close()
                if isinstance(error, OSError | EOFError):
                    raise Unavailable(
                        "the process in which versions are tried ended with status "
                        f"{self._process.returncode}; what it wrote to stderr says why"
                    ) from error
                raise

    def close(self) -> None:
        """Ends the program and what it tries."""
        self._socket.close()
        if self._owner_pid == os.getpid():
            self._process.wait()


_started: CheckProcess | None = None
_starting: Final = threading.Lock()
"""Guards ``_started``; leaf."""


def check_process(import_path: list[str]) -> CheckProcess:
    """Returns this program's process, started on first use: it imports torch first."""
    global _started
    with _starting:
        if _started is None or not _started.is_usable:
            _started = CheckProcess(import_path)
            atexit.register(_started.close)
        return _started


log = logging.getLogger(__name__)


def prepare_checks() -> CheckProcess:
    """Starts the process in which versions are tried, if there is none."""
    root = import_path()[0]
    return check_process([root, *_server_path(has_own_code=False)])


def check_version(
    folder: str, platform: str, device: str = "cpu", *, has_own_extern: bool = False
) -> dict[str, Tensors]:
    """Loads and calls a version on its examples; returns the outputs by signature. Blocks.

    Warns of what the version reads that is another thing on a server.

    Args:
        folder: The version's directory.
        platform: Which platform serves it.
        device: Where it computes.
        has_own_extern: Whether servers have modules of the author's, besides those of
            which the version's archive says so.

    Raises:
        InvalidArgument: It does not load, fails, or ends its process; says what to do.
        Unavailable: The program that tries versions ended.

    """
    archive = PackagedModules(os.path.join(folder, ARCHIVE))
    with tempfile.TemporaryDirectory(prefix="tfs-check-") as place:
        working_folder = os.path.join(place, "empty")
        os.mkdir(working_folder)
        path = os.path.join(place, "result")
        status = prepare_checks().run(
            {
                "folder": os.path.abspath(folder),
                "platform": platform,
                "device": device,
                "working_folder": working_folder,
                "result": path,
                "environment": worker_environment(),
                "import_path": _server_path(has_own_extern or archive.has_own_extern),
                "settings": _settings(),
            }
        )
        if status:
            raise InvalidArgument(
                f"it ends the process in which it is tried ({_in_words(status)}), as it "
                "would on a server"
            )
        with open(path, "rb") as file:
            result: CheckResult = pickle.load(file)
    _warn(result)
    if result.failure is not None:
        raise InvalidArgument(told(result.failure, archive) + unlike_servers())
    return result.outputs


def unlike_servers() -> str:
    """Returns what to add to an error if this program changed torch's defaults."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    changed = []
    if dtype is not torch.float32:
        changed.append(f"set_default_dtype({dtype})")
    if device.type != "cpu":
        changed.append(f"set_default_device({str(device)!r})")
    if not changed:
        return ""
    return (
        f"; this program called torch.{' and torch.'.join(changed)}, and no server does: "
        "say dtype= and device= where the model makes tensors"
    )


def _in_words(status: int) -> str:
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def _server_path(has_own_code: bool) -> list[str]:
    """Returns the import path of a server, as far as it can be known here.

    A version that declares modules of the author's extern has said that servers have
    them, and gets the author's own folders too.
    """
    path = import_path()
    return path if has_own_code else [each for each in path if is_library(each)]


def _settings() -> dict[str, object]:
    """Returns what decides how results are rounded, so that they can be compared."""
    settings: dict[str, object] = {
        "set_num_threads": torch.get_num_threads(),
        "set_float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if torch.are_deterministic_algorithms_enabled():
        settings["use_deterministic_algorithms"] = True
    return settings


def _warn(result: CheckResult) -> None:
    if result.variables:
        log.warning(
            "event=environment_variables_read names=%s are read by the model; a server "
            "has an environment of its own: set them where it is started, or keep the "
            "values in the model",
            ",".join(result.variables),
        )
    if result.files:
        log.warning(
            "event=files_outside_of_version paths=%s are read by the model; a server "
            "needs them at the same place, or as resources or assets of the version",
            ",".join(result.files),
        )
    for key, message in result.failed_others.items():
        log.warning(
            "event=signature_failed signature=%s on the example of serving_default: %s; "
            "which method a signature calls, `methods` says",
            key,
            message,
        )
