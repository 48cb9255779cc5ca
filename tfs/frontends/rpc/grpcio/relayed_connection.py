"""One client's connection, and ours to grpcio behind it.

Bytes are passed on as they come, a part at a time. While the other side does not take
them, no more are read, so a connection holds one part in each direction, and the frames
of calls that have to wait. With TLS, requests are decrypted as they are read, and answers
are encrypted before they wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

from tfs.frontends.rpc.frames import ConnectionFault, goaway
from tfs.frontends.rpc.grpcio.answer_frames import AnswerFrames
from tfs.frontends.rpc.grpcio.call_gate import CallGate
from tfs.frontends.rpc.grpcio.client_heads import ClientHeads, HeadLimits
from tfs.frontends.rpc.grpcio.connections import Traffic
from tfs.frontends.rpc.grpcio.read_turns import ReadTurns
from tfs.frontends.rpc.grpcio.request_frames import FloodError, RequestFrames
from tfs.frontends.rpc.leaving import num_queued
from tfs.frontends.rpc.tls.tls_stream import TlsFault, TlsStream

_PART_BYTES: Final = 131_072
_FRAMES_A_PART: Final = 64  # about
_LEAST_PART_BYTES: Final = 2048
_PARTS_A_TURN: Final = 2  # a turn of the loop costs as much as a part
_MOST_PARTS: Final = 64  # that are passed on at the end; sockets hold some 200 KB
# Of one part encrypted, and of what TLS itself has to say to who reads nothing.
_MOST_WAITING_BYTES: Final = 2 * _PART_BYTES


class RelayedConnection:
    """Passes bytes on in both directions. Confined to the loop's thread.

    Begins at once, and owns both sockets. It ends when either side does, after all that
    this side had sent was passed on. So if grpcio takes nothing more, its last answers
    still reach the client, whose socket is handed on then. (Who ends TLS is gone, and so
    are its calls: what it sent last is passed on as far as grpcio takes it at once.)

    Args:
        loop: The running loop.
        client: The client's connection, non-blocking.
        inner: Our connection to grpcio, non-blocking.
        gate: Limits the calls of all connections together.
        turns: Decides when the client is read.
        most_calls: How many calls this one may have.
        on_end: Called once, when both sockets are closed or handed on.
        on_flood: Told what the client did, before its connection is closed for that.
        tls: The client's encryption, after the handshake; None for plain text.
        on_left: Takes over the client's socket once grpcio has ended and all that it wrote
            was passed on; the client may not have read it yet.
        head_limits: How long the client's headers may be.

    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: socket.socket,
        inner: socket.socket,
        gate: CallGate,
        turns: ReadTurns,
        most_calls: int,
        on_end: Callable[[], object],
        on_flood: Callable[[str], object],
        tls: TlsStream | None = None,
        on_left: Callable[[socket.socket], object] = socket.socket.close,
        head_limits: HeadLimits = HeadLimits(),  # noqa: B008 - immutable
    ) -> None:
        self._client = client
        self._inner = inner
        self._gate = gate
        self._on_end = on_end
        self._on_flood = on_flood
        self._on_left = on_left
        self._tls = tls
        self._received_bytes = 0
        self._acked_bytes = 0
        # They are sent when their requests have been dealt with. The client may be gone,
        # and what is closed by that must not begin the calls that came with them.
        self._refusals: list[bytes] = []
        self._request_frames = RequestFrames(
            gate,
            most_calls,
            ClientHeads(head_limits),
            self._refusals.append,
            self._push_held,
        )
        self._answer_frames = AnswerFrames()
        self._inserted = b""  # what waits for the end of a frame of grpcio's
        self._requests = _Flow(
            loop,
            client,
            inner,
            self._take,
            self.close,
            self._on_refused,
            turns,
            _LEAST_PART_BYTES,
        )
        self._answers = _Flow(
            loop, inner, client, self._note_answers, self._leave, self.close
        )

    def finish_handshake(self, unsent: bytes) -> None:
        """Sends the rest of a TLS handshake, and takes what came with its end."""
        self._answers.push(unsent)
        self._take(b"")

    def traffic(self) -> Traffic:
        """Returns what went over the client's connection."""
        requests, answers = self._requests, self._answers
        # What waits in a socket counts more than its bytes, and never less.
        acked_bytes = (
            answers.num_passed_on - answers.num_waiting - num_queued(self._client)
        )
        self._acked_bytes = max(self._acked_bytes, acked_bytes)
        unread_bytes = requests.num_waiting + num_queued(self._inner)
        return Traffic(self._received_bytes, self._acked_bytes, unread_bytes)

    def flush(self) -> None:
        """Passes on what grpcio has written, as far as the client takes it at once."""
        self._answers.flush()

    def leave_if_idle(self) -> None:
        """Ends both connections as if grpcio had, if no call is under way."""
        self.flush()
        if not self._request_frames.has_calls and not self._answers.num_waiting:
            self._leave()

    @property
    def _is_closed(self) -> bool:
        return self._client.fileno() < 0

    def close(self) -> None:
        """Ends both connections; idempotent."""
        if not self._is_closed:
            self._end(socket.socket.close)

    def _leave(self) -> None:
        """Ends both connections, when grpcio has ended its own; idempotent."""
        if not self._is_closed:
            self._end(self._on_left)

    def _end(self, let_go: Callable[[socket.socket], object]) -> None:
        tls, self._tls = self._tls, None
        if tls is not None and not self._answers.num_waiting:
            with contextlib.suppress(OSError):
                self._client.send(tls.end())
        self._requests.stop()
        self._answers.stop()
        let_go(socket.socket(fileno=self._client.detach()))
        self._inner.close()
        self._gate.forget(self)
        self._request_frames.close()
        self._on_end()
        self._gate.go_on()

    def note_taken(self, is_read: bool) -> None:
        """Notes that grpcio has handed over a call of this client; see RequestFrames."""
        self._request_frames.note_taken(is_read)
        self._gate.go_on()

    def go_on(self) -> None:
        """Lets in the call that has waited longest; see :class:`Holder`."""
        with self._ending_at_fault():
            self._requests.push(self._request_frames.let_in_next())
            self._wait_for_others()

    def _take(self, data: bytes) -> None:
        """Passes on what grpcio may have of what the client sent."""
        with self._ending_at_fault():
            self._take_all(data)

    @contextlib.contextmanager
    def _ending_at_fault(self) -> Iterator[None]:
        """Ends the connection if what its client sent is not to be borne."""
        try:
            yield
            self._send_refusals()
        except FloodError as flood:
            self._on_flood(str(flood))
            self.close()
        except ConnectionFault as fault:
            self._send_refusals()
            last_id = self._request_frames.last_stream_id
            self._insert_answer(goaway(last_id, fault.code, fault.reason))
            self._leave()
        except TlsFault:
            self.close()  # sends the alert

    def _take_all(self, data: bytes) -> None:
        tls, has_ended = self._tls, False
        frames = self._request_frames
        if tls is not None:
            data, has_ended = tls.decrypt(data)
            self._answer_tls(tls)
            if self._is_closed:
                return
        self._received_bytes += len(data)
        passed = frames.take(data)
        self._requests.part_bytes = _part_bytes(len(data), frames.num_frames)
        more = self._let_in()
        self._requests.push(passed + more if more else passed)
        if has_ended:
            self.close()
        self._gate.go_on()

    def _answer_tls(self, tls: TlsStream) -> None:
        """Sends what TLS itself has to say, as after a change of keys."""
        output = tls.take_output()
        if output:
            self._answers.push(output)
            if self._answers.num_waiting > _MOST_WAITING_BYTES:
                raise FloodError("it changes its keys and reads nothing")

    def _let_in(self) -> bytes:
        frames = self._request_frames
        if not frames.num_held_bytes:
            return b""
        data = frames.let_in()
        self._wait_for_others()
        return data

    def _wait_for_others(self) -> None:
        frames = self._request_frames
        if frames.waits_for_others:
            self._gate.wait(self, frames.num_calls)
        self._requests.hold_up(frames.is_full)

    def _note_answers(self, data: bytes) -> None:
        """Passes on what grpcio wrote, and takes note of it."""
        self._request_frames.note_answered(len(data))
        frames = self._answer_frames
        ended = frames.ended(data)
        inserted, end = self._inserted, frames.num_whole
        if inserted and end:
            self._inserted = b""
            data = data[:end] + inserted + data[end:]
        self._send_answer(data)
        for stream_id in ended:
            self._request_frames.note_ended(stream_id)
        self._push_held()
        self._gate.go_on()

    def _send_refusals(self) -> None:
        if self._refusals:
            refusals = b"".join(self._refusals)
            self._refusals.clear()
            self._insert_answer(refusals)

    def _insert_answer(self, frames: bytes) -> None:
        """Sends the client frames of ours, between those of grpcio."""
        if self._answer_frames.is_between:
            self._send_answer(frames)
        else:
            self._inserted += frames

    def _send_answer(self, data: bytes) -> None:
        if self._tls is not None:
            try:
                data = b"".join(self._tls.encrypt(data))
            except TlsFault:
                self.close()
                return
        self._answers.push(data)

    def _push_held(self) -> None:
        """Passes on the calls that have waited and may begin now."""
        with self._ending_at_fault():
            more = self._let_in()
            if more:
                self._requests.push(more)

    def _on_refused(self) -> None:
        # grpcio has ended the connection. What it wrote before is read up to its end.
        self._requests.stop()


class _Flow:
    """Passes bytes on in one direction.

    Attributes:
        num_passed_on: Bytes that were passed on, or wait to be.
        part_bytes: The most that is read next.

    Args:
        loop: The running loop.
        source: Where the bytes come from.
        target: Where they go.
        on_data: Told what was read, which it passes on by :meth:`push`.
        on_end: Called when the source has ended, or passing on failed.
        on_refused: Called when the target has ended.
        turns: Decides when the source is read; by default at once.
        first_bytes: The most that is read at first.

    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        target: socket.socket,
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
        on_refused: Callable[[], None],
        turns: ReadTurns | None = None,
        first_bytes: int = _PART_BYTES,
    ) -> None:
        self.num_passed_on = 0
        self.part_bytes = first_bytes
        self._loop = loop
        self._source = source
        self._target = target
        self._on_data = on_data
        self._on_end = on_end
        self._on_refused = on_refused
        self._is_stopped = False
        self._is_held_up = False
        self._is_held_off = False
        self._reads = True
        self._waiting = memoryview(b"")
        self._turns = turns
        self._loop.add_reader(source, self._on_readable)

    @property
    def num_waiting(self) -> int:
        """Bytes that were read and not yet passed on."""
        return len(self._waiting)

    def hold_up(self, is_held_up: bool) -> None:
        """Stops reading from the source, or goes on with it."""
        if is_held_up is not self._is_held_up:
            self._is_held_up = is_held_up
            self._read_if_wanted()

    def hold_off(self, is_held_off: bool) -> None:
        """Stops reading for others' turns, or goes on; see :class:`Source`."""
        self._is_held_off = is_held_off
        self._read_if_wanted()

    def push(self, data: bytes) -> None:
        """Passes something on after all that was read."""
        if self._is_stopped or not data:
            return
        self.num_passed_on += len(data)
        if self._waiting:
            self._waiting = memoryview(bytes(self._waiting) + data)
            return
        self._waiting = memoryview(data)
        self._send()
        if self._waiting:
            self._loop.add_writer(self._target, self._write)
            self._read_if_wanted()

    def flush(self) -> None:
        """Passes on what the source has sent, as far as the target takes it."""
        for _ in range(_MOST_PARTS):
            num_bytes = self.num_passed_on
            if self._waiting:
                self._write()
            else:
                self.read()
            if self._waiting or num_bytes == self.num_passed_on:
                return

    def stop(self) -> None:
        """Passes nothing on any more."""
        self._is_stopped = True
        # They refer to the connection, which refers to this object.
        self._on_end = self._on_refused = _do_nothing
        self._on_data = _ignore
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._target)
        self._waiting = memoryview(b"")
        if self._turns is not None:
            self._turns.forget(self)

    def read(self) -> None:
        """Reads a part, or two long ones, if that is wanted now."""
        if not self._reads or self._is_stopped:
            return
        for _ in range(_PARTS_A_TURN):
            try:
                data = self._source.recv(self.part_bytes)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._on_end()
                return
            self._on_data(data)
            if len(data) < _PART_BYTES or not self._reads or self._is_stopped:
                return

    def _on_readable(self) -> None:
        # Who sends long frames sends what we have asked for.
        if self._turns is None or self.part_bytes == _PART_BYTES:
            self.read()
        else:
            self._turns.read(self)

    def _read_if_wanted(self) -> None:
        wants = not (
            self._waiting or self._is_held_up or self._is_held_off or self._is_stopped
        )
        if wants is self._reads:
            return
        self._reads = wants
        if wants:
            self._loop.add_reader(self._source, self._on_readable)
        else:
            self._loop.remove_reader(self._source)

    def _write(self) -> None:
        self._send()
        if not self._waiting and not self._is_stopped:
            self._loop.remove_writer(self._target)
            self._read_if_wanted()

    def _send(self) -> None:
        try:
            self._waiting = self._waiting[self._target.send(self._waiting) :]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._on_refused()
        except OSError:
            self._on_end()


def _part_bytes(num_bytes: int, num_frames: int) -> int:
    """Returns how much to read next, by what was read last.

    Each frame takes microseconds, however short. So who sends short ones, as floods do,
    does not have others wait.
    """
    mean_bytes = num_bytes // max(1, num_frames)
    return min(max(mean_bytes * _FRAMES_A_PART, _LEAST_PART_BYTES), _PART_BYTES)


def _do_nothing() -> None:
    """Stands in for a connection that has ended."""


def _ignore(data: bytes) -> None:
    """Stands in for a connection that has ended."""
