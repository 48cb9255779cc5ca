"""The paper's library API: several interpreters behind one load balancer.

    with InterpreterManager(8) as manager:
        package = manager.load_package("mobile_net_v3.pt")
        model = package.load_pickle("model", "model.pkl")
        result = model(torch.rand(1, 3, 224, 224))     # any thread, any interpreter

        with package.acquire_session() as session:      # one interpreter, several steps
            cpu_model = session.self.attr("load_pickle")("model", "model.pkl")
            wrap = session.global_("gpu_inference", "GPUModel")
            gpu_model = session.create_movable(wrap(cpu_model))

Source: "Using Python for Model Inference in Deep Learning" (torch::deploy), section
4.3 and figure 2. As in the paper, the library has no threads that run models: callers
bring their own. It needs no server; it runs a serving loop of its own for the processes.
"""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
from collections.abc import Sequence
from typing import Final, Literal, NoReturn, Self

from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.system.limits import num_processors
from tfs.runtime.dlmopen import dlmopen_probe
from tfs.runtime.dlmopen.dlmopen_interpreter import DlmopenInterpreter
from tfs.runtime.guest.memory_files import SealedFile
from tfs.runtime.library.interpreters import (
    InterpreterLender,
    ProcessChannel,
    SessionChannel,
)
from tfs.runtime.library.sessions import (
    InterpreterSession,
    MovableObject,
    Package,
    RemoteObject,
)
from tfs.runtime.process.process_backend import ProcessBackend
from tfs.runtime.process.process_options import ProcessOptions

__all__ = [
    "InterpreterManager",
    "InterpreterSession",
    "MovableObject",
    "Package",
    "RemoteObject",
]

_CLOSE_S = 30.0
_BACKENDS: Final = ("process", "dlmopen")


class InterpreterManager:
    """Hands out interpreters, the least used first. Thread-safe; a context manager.

    Args:
        num_interpreters: How many; None for one per core this process may keep busy,
            and of "dlmopen" no more than are likely to have room.
        backend: "process", or "dlmopen" for private CPythons in this process.
        options: For processes. Private CPythons only use ``load_timeout_s``: how long a
            call may keep others waiting before they are refused.

    It and everything that it makes belong to the process in which it was made. A forked
    process has to make its own.

    Raises:
        FailedPrecondition: This host cannot run backend "dlmopen"; says why. The first
            manager of a process that asks for it blocks for seconds to find out.

    """

    def __init__(
        self,
        num_interpreters: int | None = None,
        *,
        backend: Literal["process", "dlmopen"] = "process",
        options: ProcessOptions | None = None,
    ) -> None:
        if backend not in _BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(_BACKENDS)}")
        num = num_interpreters
        if num is None:
            num = num_processors()
            if backend == "dlmopen":
                num = min(num, dlmopen_probe.most_interpreters())
        if num < 1:
            raise ValueError("num_interpreters must be >= 1")
        how = options or ProcessOptions()
        self._loop: ServingLoop | None = None
        self._processes: ProcessBackend | None = None
        channels: Sequence[SessionChannel]
        if backend == "dlmopen":
            dlmopen_probe.require(num)
            # As long as one waits for a process.
            channels = [
                DlmopenInterpreter(f"dlmopen-{i}", call_timeout_s=how.load_timeout_s)
                for i in range(num)
            ]
        else:
            loop = self._loop = ServingLoop(name="interpreter-manager")
            processes = self._processes = ProcessBackend(loop, how)
            channels = [
                ProcessChannel(loop, how, processes.worker(f"process-{i}"))
                for i in range(num)
            ]
            loop.start()
        self._lender = InterpreterLender(channels)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_interpreters(self) -> int:
        """The number of interpreters."""
        return len(self._lender.interpreters)

    def load_package(self, path: str | os.PathLike[str]) -> Package:
        """Opens an archive saved with ``torch.package``; reads it into memory once.

        Raises:
            NotFound: There is no such file.
            InvalidArgument: It is no such archive; the message says what to pass
                instead.

        """
        self._lender.check_open()
        name = os.path.basename(os.path.abspath(path))
        _check_archive(os.fspath(path), name)
        try:
            file = SealedFile.copy_of(os.fspath(path))
        except OSError as error:
            raise NotFound(f"cannot read package {name!r}: {error.strerror}") from error
        return Package(self._lender, name, file)

    def acquire_session(self) -> InterpreterSession:
        """Starts a session with the least used interpreter; ``self`` is None there."""
        return InterpreterSession(self._lender)

    def close(self) -> None:
        """Ends all interpreters; sessions and objects cannot be used then. Idempotent.

        Raises:
            ServingError: An interpreter does not close. All else is closed then.

        """
        if not self._lender.close():
            return
        deadline_s = time.monotonic() + _CLOSE_S
        with contextlib.ExitStack() as ends:  # each, whatever the others raise
            for file in list(self._lender.files):
                ends.callback(file.close)
            if self._loop is not None and self._processes is not None:
                ends.callback(self._loop.close, deadline_s)
                ends.callback(self._processes.close, deadline_s)
            for each in reversed(self._lender.interpreters):
                ends.callback(each.channel.close, deadline_s)

    def __reduce__(self) -> NoReturn:
        self._lender.__reduce__()


def _check_archive(path: str, name: str) -> None:
    """Refuses files that are no archive of torch.package, before reading them into memory."""
    if os.path.isdir(path):
        raise InvalidArgument(
            f"{name!r} is a directory; pass the archive in it, such as model.pt"
        )
    if not os.path.exists(path):
        return  # reading the file will say so
    is_archive = False
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        is_archive = any(each.endswith("/.data/extern_modules") for each in names)
    if not is_archive:
        raise InvalidArgument(
            f"{name!r} is no archive of torch.package; write one with "
            "torch.package.PackageExporter or tfs.export.save (torch.save and "
            "torch.jit.save write others)"
        )
