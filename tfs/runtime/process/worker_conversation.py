"""The messages between host and worker besides calls and their replies."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping

from tfs.core.errors import BY_CODE, Code, Internal, ServingError
from tfs.runtime.guest import control_channel
from tfs.runtime.process.load_sign import LoadSign
from tfs.runtime.process.worker_link import WorkerLink


class WorkerReply:
    """A worker's answer, or event. Confined to the loop.

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


class WorkerConversation:
    """Requests to one worker's control thread. Loop-confined.

    What the host sends is pickled (the worker trusts it); what comes back is JSON.

    Args:
        link: The worker; the caller watches its control channel and calls ``read``.
        on_event: Takes what the worker says without being asked.
        on_broken: Called when the worker is of no use any more; with the reason, if it
            was found here.
        sign: Is set while the worker does something in the background; None sets
            nothing.

    """

    def __init__(
        self,
        link: WorkerLink,
        on_event: Callable[[WorkerReply], None],
        on_broken: Callable[[str | None], None],
        sign: LoadSign | None = None,
    ) -> None:
        self._link = link
        self._on_event = on_event
        self._on_broken = on_broken
        self._sign = sign
        self._in_background = set[int]()
        self._awaited: dict[int, OnReply] = {}
        self._next_id = 0
        self._over = False

    @property
    def num_awaited(self) -> int:
        """The number of requests that have no answer yet."""
        return len(self._awaited)

    def send(
        self,
        op: str,
        fields: Mapping[str, object],
        fds: tuple[int, ...],
        on_reply: OnReply,
        *,
        background: bool,
    ) -> None:
        """Asks the worker for something."""
        message_id = self._next_id
        self._next_id += 1
        self._awaited[message_id] = on_reply
        if background and self._sign is not None and not self._over:
            self._in_background.add(message_id)
            self._sign.begin()
        message = {"id": message_id, "op": op, "background": background, **fields}
        try:
            control_channel.send(self._link.control, pickle.dumps(message), fds)
        except OSError as error:
            # The request is answered when the worker's end is noticed.
            self._on_broken(f"was ended: it takes no requests ({error.strerror})")

    def read(self) -> None:
        """Reads what the worker has said, and delivers it."""
        if self._over:
            return
        for message in control_channel.waiting(self._link.control):
            if message is None:
                self._over = True
                self._on_broken(None)  # it is dying, and the zygote learns why
            else:
                self._take(*message)
            if self._over:
                return

    def end(self) -> list[OnReply]:
        """Returns the callbacks that still wait for an answer; none will come."""
        self._over = True
        if self._sign is not None:
            self._sign.end(len(self._in_background))
        self._in_background.clear()
        awaited, self._awaited = self._awaited, {}
        return list(awaited.values())

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
            if "event" in fields:
                self._on_event(reply)
            elif isinstance(message_id, int) and message_id in self._awaited:
                if self._sign is not None and message_id in self._in_background:
                    self._in_background.remove(message_id)
                    self._sign.end()
                self._awaited.pop(message_id)(reply)
        finally:
            control_channel.close_all(reply.fds)
