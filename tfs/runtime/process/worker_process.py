"""One process of a worker as its host sees it: its calls, its messages, its end."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from tfs.core.errors import BY_CODE, Code, Internal, ServingError
from tfs.core.loop.pacing import Traffic
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.core.system.thread_priority import LOWEST
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.own_process import SHOW_STACKS
from tfs.runtime.guest.slab import HOST_TRAFFIC, STARTED, WORD_BYTES, Slab
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.zygote import Forked

_MOST_REPLIES: Final = 1024  # further replies are read the next time


@dataclass(slots=True)
class WorkerReply:
    """A worker's answer. Confined to the loop.

    Attributes:
        fields: The answer's JSON.
        payload: What follows it, for sessions.
        fds: Descriptors that came along; those that nobody takes are closed.

    """

    fields: Mapping[str, object]
    payload: bytes
    fds: list[int]

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

    A worker that looks for the next request before it sleeps rings by an eventfd. The
    kernel assumes that a writer to a pipe is about to sleep, and wakes the loop on its
    core; see the guest's ``_ring``.

    Args:
        loop: Watches it.
        options: How the process runs.
        traffic: The requests for which it makes way while it works in the background.

    Attributes:
        slab: Holds its calls.
        concurrency: How many calls it runs at once.
        reply_fd: Readable while there are replies.
        ring: Tells it that there is one more request in the slab.

    Raises:
        OSError: There are no descriptors left; nothing stays open.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: WorkerOptions,
        traffic: Callable[[], Traffic],
    ) -> None:
        self._loop = loop
        self._traffic = traffic
        self.concurrency = options.concurrency
        # Each read of the doorbell lets one thread take one request, if there are several.
        has_threads = options.concurrency > 1 and not options.is_staged
        one_each = os.EFD_SEMAPHORE if has_threads else 0
        self._spins = bool(options.spin_us)
        with contextlib.ExitStack() as owned:
            self.slab = Slab.create(options.slab_bytes, options.concurrency)
            owned.callback(self.slab.close)
            self._request_fd = os.eventfd(0, os.EFD_CLOEXEC | one_each)
            owned.callback(os.close, self._request_fd)
            if self._spins:
                self.reply_fd = os.eventfd(0, os.EFD_CLOEXEC)
                owned.callback(os.close, self.reply_fd)
                self._their_reply_fd = os.dup(self.reply_fd)
            else:
                self.reply_fd, self._their_reply_fd = os.pipe()
                owned.callback(os.close, self.reply_fd)
            # Our copy of the pipe's other end stays open: a pipe without a writer is
            # readable for ever, and that the worker died shows on its pidfd.
            owned.callback(os.close, self._their_reply_fd)
            os.set_blocking(self.reply_fd, False)
            self._tensors, self._their_tensors = control_channel.pair()
            owned.callback(self._tensors.close)
            owned.callback(self._their_tensors.close)
            self._control, self._their_control = control_channel.pair()
            owned.callback(self._control.close)
            owned.callback(self._their_control.close)
            self._owned = owned.pop_all()
        self._tensors.setblocking(False)
        self._control.setblocking(False)
        self.ring = partial(os.eventfd_write, self._request_fd, 1)
        self._forked: Forked | None = None
        self._awaited: dict[int, OnReply] = {}
        self._in_background = set[int]()
        self._next_id = 0
        self._on_broken: Callable[[str | None], None] = lambda _: None
        self._is_heard = False
        self._closed = False

    @property
    def remote_fds(self) -> tuple[int, ...]:
        """The descriptors that the process gets, in the order in which it takes them."""
        return (
            self.slab.fd,
            self._request_fd,
            self._their_reply_fd,
            self._their_tensors.fileno(),
            self._their_control.fileno(),
        )

    @property
    def pid(self) -> int | None:
        """The process id, once there is a process."""
        return self._forked.pid if self._forked is not None else None

    @property
    def num_awaited(self) -> int:
        """How many requests have no answer yet."""
        return len(self._awaited)

    # -- calls -------------------------------------------------------------------------

    def num_replies(self) -> int:
        """Returns how many replies have come since the last call of this method."""
        try:
            if self._spins:
                return os.eventfd_read(self.reply_fd)
            return len(os.read(self.reply_fd, _MOST_REPLIES * WORD_BYTES)) // WORD_BYTES
        except BlockingIOError:
            return 0

    def num_started(self) -> int:
        """Returns how many calls the worker says it began."""
        started: int = self.slab.words[STARTED]
        return started

    def send_tensors(self, fd: int) -> None:
        """Sends the memfd of the request that was written last, and closes it.

        Raises:
            OSError: The worker is gone, or does not keep up.

        """
        try:
            socket.send_fds(self._tensors, [b"i"], [fd])
        finally:
            os.close(fd)

    def receive_tensors(self) -> int | None:
        """Returns the memfd of the reply that is read next; the caller closes it."""
        try:
            _, fds, _, _ = socket.recv_fds(self._tensors, 1, 1)
        except OSError:
            return None
        return fds[0] if fds else None

    # -- everything else ---------------------------------------------------------------

    def attach(self, forked: Forked) -> None:
        """Takes over the forked process."""
        self._forked = forked
        self._their_control.close()
        self._their_tensors.close()

    def listen(
        self, on_broken: Callable[[str | None], None], on_end: Callable[[], None]
    ) -> None:
        """Begins to listen to the process, which is attached.

        Args:
            on_broken: Called when it is of no use any more; with the reason, if it was
                found here.
            on_end: Called once it has ended.

        """
        assert self._forked is not None
        self._on_broken = on_broken
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
        """Asks the process for something; in the background, at its lowest priority."""
        message_id = self._next_id
        self._next_id += 1
        self._awaited[message_id] = on_reply
        if background:
            if not self._in_background:
                self._loop.add_round_hook(self._show_traffic, Phase.FLUSH)
            self._in_background.add(message_id)
        message = {"id": message_id, "op": op, "background": background, **fields}
        try:
            control_channel.send(self._control, pickle.dumps(message), fds)
        except OSError as error:
            # The request is answered when the worker's end is noticed.
            self._on_broken(f"was ended: it takes no requests ({error.strerror})")

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
        for message_id in [*self._in_background]:
            self._end_background(message_id)
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
        if self._forked is not None:
            os.close(self._forked.pidfd)
        self._owned.close()

    # A worker that loads in the background yields to requests (tfs.core.loop.pacing): it
    # has the lowest priority, but a thread of the server that was interrupted, and has had
    # a few microseconds more than its share, has to wait for the load all the same.

    def _show_traffic(self, _: float) -> None:
        """Shows it, after each round, whether there are requests to answer."""
        self.slab.words[HOST_TRAFFIC] = self._traffic()

    def _end_background(self, message_id: int) -> None:
        self._in_background.discard(message_id)
        if not self._in_background:
            self._loop.remove_round_hook(self._show_traffic)
            self.slab.words[HOST_TRAFFIC] = Traffic.NONE

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
                if message_id in self._in_background:
                    self._end_background(message_id)
                self._awaited.pop(message_id)(reply)
        finally:
            control_channel.close_all(reply.fds)
