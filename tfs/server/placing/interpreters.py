"""The interpreters of a server process, by backend; made when first needed."""

from __future__ import annotations

import contextlib
import gc
import grp
import itertools
import os
import pwd
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.loop.pacing import Traffic
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable_id import ServableId
from tfs.core.system.limits import num_processors
from tfs.runtime.dlmopen import dlmopen_probe
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.interpreter import Interpreter
from tfs.runtime.placement import Backend
from tfs.runtime.process.process_backend import ProcessBackend
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.zygote_process import UNCOMPILED, ZygoteProcess
from tfs.server.options import ServerOptions

if TYPE_CHECKING:
    from tfs.runtime.dlmopen.dlmopen_backend import DlmopenBackend
    from tfs.runtime.inline.inline_interpreter import InlineInterpreter


_IN_PROCESS: Final = (Backend.FRONT, Backend.INLINE, Backend.DLMOPEN)
_MAX_QUEUED: Final = 256  # calls that may wait for one interpreter


class Interpreters:
    """Owns the interpreters. Thread-safe; only ``close``, off the loop, ends calls.

    Args:
        loop: The serving loop: front models run on it, and it talks to processes.
        options: How many there are, and how they run.
        on_slow: Called on the loop when a front model took too long.
        on_quarantine: Called on the loop when a version crashed once too often.
        zygote: A zygote process that runs already; None starts one when it is needed.
        is_urgent: Whether loads need not make way for what serves.
        traffic: The requests for which loads make way.
        executor: Packs and unpacks what would hold up the loop; by default the loop does.

    Attributes:
        num: Processes of a version, and threads for calls in the server process.
        num_private: Private Pythons (dlmopen).

    Raises:
        InvalidArgument: On creation, as ``worker_options``.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: ServerOptions,
        *,
        on_slow: Callable[[ServableId, float], None],
        on_quarantine: Callable[[ServableId, str], None],
        zygote: ZygoteProcess | None = None,
        is_urgent: Callable[[], bool] = lambda: False,
        traffic: Callable[[], Traffic] = lambda: Traffic.NONE,
        executor: Executor | None = None,
    ) -> None:
        self._loop = loop
        self._on_slow = on_slow
        self._call_timeout_s = options.interpreter_call_timeout_s
        self.num = self.num_private = options.num_interpreters or num_processors()
        if not options.num_interpreters:
            self.num_private = min(self.num, dlmopen_probe.most_interpreters())
        self._processes = ProcessBackend(
            loop,
            ProcessOptions(
                worker=worker_options(options),
                max_queued=_MAX_QUEUED,
                call_timeout_s=self._call_timeout_s,
                on_quarantine=on_quarantine,
                is_urgent=is_urgent,
                traffic=traffic,
                executor=executor or InlineExecutor(),
            ),
            zygote,
        )
        # Held while torch is imported, by a load thread or the main thread: others that
        # want torch wait for it. Leaf.
        self._importing = threading.Lock()
        # Guards the fields below; leaf but for the process backend's: making
        # interpreters starts nothing.
        self._lock = threading.Lock()
        # These exist once torch is imported: the loop itself, threads, private Pythons.
        self._front: InlineInterpreter | None = None
        self._inline: Sequence[InlineInterpreter] = ()
        self._private: DlmopenBackend | None = None
        self._turns: Iterator[InlineInterpreter] = iter(())
        self._has_imported = False
        self._closed = False

    def of(
        self,
        backend: Backend,
        *,
        num_processes: int = 0,
        may_grow: Callable[[], bool] | None = None,
    ) -> Interpreter:
        """Returns the interpreter for one version that is to run there.

        A version that runs in processes has them to itself: ``num_processes``, or as
        many as the options say. With ``may_grow`` it has one at first, and gets the
        others when calls wait (:class:`~tfs.runtime.process.process_backend.ProcessPool`).
        Private Pythons are shared by all versions; a version uses ``num_processes`` of
        them, or all.

        Raises:
            FailedPrecondition: This server has no such backend.

        """
        if backend in _IN_PROCESS:
            self.prepare()
        with self._lock:
            if self._closed:
                raise FailedPrecondition("the interpreters are closed")
            if backend is Backend.PROCESS:
                return self._processes.pool(num_processes or self.num, may_grow)
            found: Interpreter | None = None
            if backend is Backend.DLMOPEN and self._private is not None:
                found = self._private.group(num_processes)
            elif backend is Backend.FRONT:
                found = self._front
            elif backend is Backend.INLINE and self._inline:
                found = next(self._turns)
            if found is None:
                raise FailedPrecondition(f"no {backend.value} interpreters here")
            return found

    def prepare_processes(self) -> None:
        """Has a zygote start for the first process; returns at once."""
        self._processes.prepare()

    def prepare(self) -> None:
        """Imports torch for models in this process; blocks for a second the first time.

        From then on garbage collections leave out what was imported, like all that a
        server imports at its start (:mod:`tfs.server.system.process_settings`).
        """
        with self._importing:
            if not self._has_imported:
                _import_torch()
                self._has_imported = True
        from tfs.runtime.dlmopen.dlmopen_backend import DlmopenBackend
        from tfs.runtime.inline.inline_interpreter import InlineInterpreter

        clock = self._loop.clock
        with self._lock:
            if self._front is not None or self._closed:
                return
            self._front = InlineInterpreter(
                "front",
                max_queued=_MAX_QUEUED,
                clock=clock,
                front_loop=self._loop,
                on_slow=self._on_slow,
            )
            self._inline = [
                InlineInterpreter(f"inline-{i}", max_queued=_MAX_QUEUED, clock=clock)
                for i in range(self.num)
            ]
            self._turns = itertools.cycle(self._inline)
            self._private = DlmopenBackend(
                self.num_private,
                max_queued=_MAX_QUEUED,
                clock=clock,
                call_timeout_s=self._call_timeout_s,
            )

    def close(self, deadline_s: float) -> None:
        """Ends every interpreter, its process and the zygote; idempotent."""
        with self._lock:
            self._closed = True
        for each in (self._front, *self._inline, self._private, self._processes):
            if each is not None:
                each.close(deadline_s)


def _import_torch() -> None:
    """Imports torch, and what of ours needs it; without a pause for garbage."""
    is_new = "torch" not in sys.modules
    collects = gc.isenabled()
    if is_new:
        for name, value in UNCOMPILED.items():
            os.environ.setdefault(name, value)
        gc.disable()  # importing makes no garbage to collect
    try:
        from tfs.runtime.inline import inline_interpreter
    finally:
        if is_new and collects:
            gc.enable()
    if is_new:
        inline_interpreter.run_script_functions_as_python()
        gc.freeze()  # must precede any load in this process


def worker_options(options: ServerOptions) -> WorkerOptions:
    """Returns how process interpreters run.

    Raises:
        InvalidArgument: Their user is unknown, or the server may not switch to it.

    """
    user_id, group_id = None, None
    if options.worker_user:
        user_id, group_id = user_of(options.worker_user)
        if os.geteuid():
            raise InvalidArgument(
                "--worker_user: only a server that runs as root can give its "
                "interpreters another user"
            )
    return WorkerOptions(
        spin_us=options.worker_spin_us,
        memory_limit_bytes=options.worker_memory_limit_bytes,
        nice=options.worker_nice,
        user_id=user_id,
        group_id=group_id,
    )


def user_of(text: str) -> tuple[int, int]:
    """Returns user and group of "name", "name:group", "uid" or "uid:gid".

    Without a group it is the user's own group. A number without an account has none, so
    it gets the group with the same number.

    Raises:
        InvalidArgument: There is no such account.

    """
    user, _, group = text.partition(":")
    try:
        if user.isdigit():
            user_id = group_id = int(user)
            with contextlib.suppress(KeyError):
                group_id = pwd.getpwuid(user_id).pw_gid
        else:
            account = pwd.getpwnam(user)
            user_id, group_id = account.pw_uid, account.pw_gid
        if group:
            group_id = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise InvalidArgument(
            f"--worker_user={text}: no such user or group; name an account of this "
            "host, or numbers as uid:gid"
        ) from error
    return user_id, group_id
