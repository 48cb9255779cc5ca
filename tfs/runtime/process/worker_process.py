"""One process of a worker as its host sees it: its calls, its messages, its end."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
from collections.abc import Callable, Mapping

from tfs.core.errors import BY_CODE, Code, Internal, ServingError
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.system.thread_priority import LOWEST
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.shown_stacks import SHOW_STACKS
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.call_channel import CallChannel
from tfs.runtime.process.load_sign import LoadSign
from tfs.runtime.process.zygote import Forked


class WorkerReply:
    """A worker's answer. Confined to the loop.

    Attributes:
        fields: The answer's JSON.
        payload: What follows it, for sessions.
        fds: Descriptors that came along; those that nobody takes are closed.

    """

    __slots__ = ("fds", "fields", "payload")

    def __init__(
        self, fields: Mapping[str, object], payload: bytes, fds: list[int]
    ) -> None:
        self.fields = fields
        self.payload = payload
        self.fds = fds

    def error(self) -> ServingError | None:
        """Returns the error that it carries; None if all went well."""
        code = self.fields.get("code")
        if code == 0:
            return None
        kind: type[ServingError] = Internal
        if isinstance(code, int) and code in BY_CODE:
            kind = BY_CODE[Code(code)]
        return kind(str(self.fields.get("message", "an error without a message")))


OnReply = Callable[["WorkerReply | None"], None]
"""Takes the reply, or None if the worker died first."""


class WorkerProcess:
    """Memory and descriptors shared with one process, and what is said to it.

    Loop-confined. It is made before its process, with the process's ends in
    ``remote_fds``, and outlives it by the time that it takes to read what that had
    finished. What the host sends is pickled (the worker trusts it); what comes back is
    JSON.

    Args:
        loop: Watches it.
        options: How the process runs.

    Raises:
        OSError: There are no descriptors left; nothing stays open.

    """

    def __init__(self, loop: ServingLoop, options: WorkerOptions) -> None:
        self._loop = loop
        with contextlib.ExitStack() as undo:
            self.calls = CallChannel(options)
            undo.callback(self.calls.close)
            self._control, self._their_control = control_channel.pair()
            undo.pop_all()
        self._control.setblocking(False)
        self._forked: Forked | None = None
        self._awaited: dict[int, OnReply] = {}
        self._in_background = set[int]()
        self._next_id = 0
        self._on_broken: Callable[[str | None], None] = lambda _: None
        self._sign: LoadSign | None = None
        self._is_heard = False
        self._closed = False

    @property
    def remote_fds(self) -> tuple[int, ...]:
        """The descriptors that the process gets, in the order in which it takes them."""
        return (*self.calls.remote_fds, self._their_control.fileno())

    @property
    def pid(self) -> int | None:
        """The process id, once there is a process."""
        return self._forked.pid if self._forked is not None else None

    @property
    def imported(self) -> frozenset[str]:
        """The platforms whose slow imports the process has done."""
        return self._forked.imported if self._forked is not None else frozenset()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, even if nobody was told yet. Does not block."""
        if self._forked is None:
            return False
        poll = select.poll()
        poll.register(self._forked.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def num_awaited(self) -> int:
        """How many requests have no answer yet."""
        return len(self._awaited)

    def attach(self, forked: Forked) -> None:
        """Takes over the forked process."""
        self._forked = forked
        self._their_control.close()
        self.calls.detach()

    def listen(
        self,
        on_broken: Callable[[str | None], None],
        on_end: Callable[[], None],
        sign: LoadSign | None = None,
    ) -> None:
        """Begins to listen to the process, which is attached; for one listener at a time.

        Args:
            on_broken: Called when it is of no use any more; with the reason, if it was
                found here.
            on_end: Called once it has ended.
            sign: Is set while it does something in the background; None sets nothing.

        """
        assert self._forked is not None
        self._on_broken, self._sign = on_broken, sign
        self._is_heard = True
        pidfd = self._forked.pidfd

        def end(_: int) -> None:
            self._loop.unwatch(pidfd)
            on_end()

        self._loop.watch(pidfd, end)
        self._loop.watch(self._control.fileno(), lambda _: self._read())

    def send(
        self,
        op: str,
        fields: Mapping[str, object],
        fds: tuple[int, ...],
        on_reply: OnReply,
        *,
        background: bool,
    ) -> None:
        """Asks the process for something."""
        message_id = self._next_id
        self._next_id += 1
        self._awaited[message_id] = on_reply
        if background and self._sign is not None and self._is_heard:
            self._in_background.add(message_id)
            self._sign.begin()
        message = {"id": message_id, "op": op, "background": background, **fields}
        try:
            control_channel.send(self._control, pickle.dumps(message), fds)
        except OSError as error:
            # The request is answered when the worker's end is noticed.
            self._on_broken(f"was ended: it takes no requests ({error.strerror})")

    def load(
        self,
        source: ModelSource,
        model_id: int,
        files: VersionFiles,
        on_reply: OnReply,
        background: bool,
    ) -> None:
        """Has the process load a version from its files, under a number."""
        names = list(files.files)
        fields = {"source": source, "model": model_id, "files": names}
        self.send("load", fields, files.fds, on_reply, background=background)

    def ignore(self) -> None:
        """Reads no more of what it says; its end is still noticed."""
        self._loop.unwatch(self._control.fileno())

    def stop_listening(self) -> list[OnReply]:
        """Ends ``listen``; idempotent.

        Returns:
            The callbacks that still wait for an answer; none will come.

        """
        if self._is_heard and self._forked is not None:
            self._is_heard = False
            self._loop.unwatch(self._forked.pidfd)
            self._loop.unwatch(self._control.fileno())
        if self._sign is not None:
            self._sign.end(len(self._in_background))  # writes to the slab
        self._in_background.clear()
        awaited, self._awaited = self._awaited, {}
        return list(awaited.values())

    def kill(self) -> None:
        """Ends the process at once; idempotent.

        It dies at the lowest priority, because the kernel needs 5 ms and more to free
        what it held.
        """
        forked = self._forked
        if forked is not None and not self._closed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(forked.pidfd, 0)  # its pid is not reused yet
                with contextlib.suppress(OSError):
                    # For all its threads, because the last to end frees the memory.
                    os.setpriority(os.PRIO_PGRP, forked.pid, LOWEST)
                signal.pidfd_send_signal(forked.pidfd, signal.SIGKILL)

    def show_stacks(self) -> None:
        """Has the process write to stderr what its threads are at."""
        if self._forked is not None and not self._closed:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._forked.pidfd, SHOW_STACKS)

    def exit_status(self) -> int | None:
        """Returns its status of ``os.wait``, once it has ended; None if nobody knows."""
        forked = self._forked
        return forked.exits.of(forked.pid, forked.pidfd) if forked is not None else None

    def close(self) -> None:
        """Kills the process and frees everything; idempotent."""
        if self._closed:
            return
        self.stop_listening()
        self.kill()
        self._closed = True
        self._control.close()
        self._their_control.close()
        if self._forked is not None:
            os.close(self._forked.pidfd)
        self.calls.close()

    def _read(self) -> None:
        for message in control_channel.waiting(self._control):
            if message is None:
                self.ignore()
                self._on_broken(None)  # it is dying, and its pidfd says when
                return
            self._take(*message)
            if not self._is_heard:
                return

    def _take(self, body: bytes, fds: list[int]) -> None:
        line, _, payload = body.partition(b"\n")
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("not an object")
            message_id = fields.get("id")
        except ValueError:
            control_channel.close_all(fds)
            self._on_broken("was ended: it sent nonsense")
            return
        reply = WorkerReply(fields, payload, fds)
        try:
            if isinstance(message_id, int) and message_id in self._awaited:
                if self._sign is not None and message_id in self._in_background:
                    self._in_background.remove(message_id)
                    self._sign.end()
                self._awaited.pop(message_id)(reply)
        finally:
            control_channel.close_all(reply.fds)
