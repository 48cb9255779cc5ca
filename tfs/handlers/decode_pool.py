"""Decodes messages and writes answers that would hold up the serving loop, on threads.

A large or unusual message takes milliseconds to decode. It waits for one of a few
threads, and continues on the loop when it is done. If it takes far more memory than was
sent, its transport is asked for room first (``Call.take_room``), and hands it over again
when there is some. No order is promised: a small request that came later may overtake
it. A function that writes an answer also ends the call.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from tfs.core import stat_names
from tfs.core.call import Call
from tfs.core.errors import (
    ServingError,
    Unavailable,
    forget_frames,
    serving_error,
)
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.stats import Stats

log = logging.getLogger(__name__)

T = TypeVar("T")

Reserve: TypeAlias = Callable[[int], None]
"""Is told, before a request takes memory beyond its message, how much it takes in all.
Raises NeedsRoomError if its call has to be asked first."""

UNASKED_BYTES: Final = 1 << 16
"""So much a request may take without asking; transports have room for it."""


class NeedsRoomError(Exception):
    """A request is to take more than its call was asked for; it has taken nothing.

    Attributes:
        num_bytes: What the call has to be asked for.

    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes that the call was not asked for")
        self.num_bytes = num_bytes


def reserve_unasked(num_bytes: int) -> None:
    """Lets a request take what needs no room.

    Raises:
        NeedsRoomError: It takes more.

    """
    if num_bytes > UNASKED_BYTES:
        raise NeedsRoomError(num_bytes)


DEFAULT_MAX_QUEUED: Final = 256
RETRY_AFTER_S: Final = 0.25


@dataclass(slots=True)
class _Job(Generic[T]):
    """A message that is decoded.

    Attributes:
        asked_bytes: What its call was asked for.

    """

    call: Call
    decode: Callable[[Reserve], T]
    done: Callable[[T | ServingError], None]
    put_off: Callable[[], object]
    asked_bytes: int = UNASKED_BYTES

    def reserve(self, num_bytes: int) -> None:
        if num_bytes > self.asked_bytes:
            # A request with many inputs that grow is read again a few times only.
            raise NeedsRoomError(max(num_bytes, 2 * self.asked_bytes))


class DecodePool:
    """Decodes on an executor, then continues on the thread that ``post`` leads to.

    ``run`` is called on the serving loop, ``write`` on any thread; the rest is internal.

    Args:
        executor: Its threads decode. By default the caller does, at once.
        post: Runs a function on the serving loop. By default it runs at once.
        max_queued: Most messages that may wait or be decoded at a time.
        stats: Where its counters are registered.
        on_decoded: Called on the loop after each message.

    """

    def __init__(
        self,
        executor: Executor | None = None,
        post: Callable[[Callable[[], None]], None] | None = None,
        max_queued: int = DEFAULT_MAX_QUEUED,
        stats: Stats | None = None,
        on_decoded: Callable[[], None] | None = None,
    ) -> None:
        self._on_decoded = on_decoded or _nothing
        self._executor = executor or InlineExecutor()
        self._post = post or _at_once
        self._max_queued = max_queued
        stats = stats or Stats()
        # One token for each place. Taking and giving back a token are atomic on any
        # thread.
        room = self._room = deque((None,) * max_queued)
        self._num_decoded = stats.counter(stat_names.SLOW_DECODES)
        self._num_skipped = stats.counter(stat_names.SLOW_DECODES_SKIPPED)
        self._num_refused = stats.counter(stat_names.REQUESTS_REFUSED, limit="decode")
        self._num_written = stats.counter(stat_names.SLOW_ANSWERS)
        stats.gauge(stat_names.SLOW_DECODES_QUEUED, lambda: max_queued - len(room))

    def run(
        self,
        call: Call,
        decode: Callable[[Reserve], T],
        done: Callable[[T | ServingError], None],
        put_off: Callable[[], object],
    ) -> None:
        """Runs ``decode`` on a thread, then ``done`` with its outcome on the loop.

        A call that is cancelled before its turn is not decoded, and one that is
        cancelled meanwhile is not continued; ``done`` gets the reason then. It runs
        exactly once, unless this raises, or there is no room for the request: then
        ``put_off`` runs instead, on the loop, and the call is handed over again later.

        Raises:
            Unavailable: Too many wait already; nothing will run.

        """
        try:
            self._room.pop()
        except IndexError:
            self._num_refused.add()
            raise Unavailable(
                f"{self._max_queued} large requests are being decoded; retry after a "
                "pause",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        job = _Job(call, decode, done, put_off)
        try:
            self._executor.submit(functools.partial(self._decode, job))
        except RuntimeError:
            self._room.append(None)
            raise Unavailable("the server is shutting down") from None

    def reply(self, call: Call, make: Callable[[], bytes], *, is_long: bool) -> None:
        """Replies with what ``make`` returns, which runs on a thread if it takes long.

        Raises:
            ServingError: As ``make`` or :meth:`run` do; the caller has to fail the
                call.

        """

        def done(outcome: bytes | ServingError) -> None:
            if isinstance(outcome, ServingError):
                call.fail(outcome)
            else:
                call.reply(outcome)

        if is_long:
            self.run(call, lambda _: make(), done, _nothing)
        else:
            call.reply(make())

    def write(self, write: Callable[[], None]) -> None:
        """Has an answer written on a thread; here if the server shuts down.

        Args:
            write: Finishes its call, whatever happens. Only the limits on requests in
                flight bound how many wait, because each request keeps its place.

        """
        self._num_written.add()
        try:
            self._executor.submit(write)
        except RuntimeError:
            write()

    def _decode(self, job: _Job[T]) -> None:
        call = job.call
        outcome: T | ServingError
        if call.cancel.error is not None:
            self._num_skipped.add()
            outcome = call.cancel.error
        else:
            try:
                outcome = job.decode(job.reserve)
            except NeedsRoomError as needs:
                forget_frames(needs)
                self._post(functools.partial(self._ask, job, needs.num_bytes))
                return
            except Exception as error:
                if not isinstance(error, ServingError):
                    log.error(
                        "event=decode_failed method=%s", call.method, exc_info=error
                    )
                outcome = serving_error(error, call.method)
                # The error refers to this frame, which refers to the error and the
                # message.
                forget_frames(outcome)
            self._num_decoded.add()
        self._room.append(None)
        self._post(functools.partial(self._go_on, job, outcome))

    def _ask(self, job: _Job[T], num_bytes: int) -> None:
        """Decodes a message again if its call has room for what it takes. On the loop."""
        try:
            has_room = job.call.take_room(num_bytes)
        except ServingError as error:
            self._room.append(None)
            self._go_on(job, error)
            return
        if not has_room:
            self._room.append(None)
            job.put_off()
            return
        job.asked_bytes = num_bytes
        again = functools.partial(self._decode, job)
        try:
            self._executor.submit(again)
        except RuntimeError:  # the server is closing: no thread is left to wait for
            again()

    def _go_on(self, job: _Job[T], outcome: T | ServingError) -> None:
        self._on_decoded()
        job.done(job.call.cancel.error or outcome)


def _nothing() -> None:
    """Does nothing; the default of ``on_decoded``."""


def _at_once(fn: Callable[[], None]) -> None:
    fn()
