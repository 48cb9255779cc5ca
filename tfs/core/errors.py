"""One error tree for every room, with gRPC's canonical codes.

The code is chosen where the fault is known; a front end only copies it. Errors are
often values rather than raised: a task ends with outputs *or* a ``ServingError``, and
the state of a failed version carries one. docs/errors.md says which kind means what.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import errno
import json
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final


class Code(enum.IntEnum):
    """Canonical status codes, numbered as in gRPC and ``tensorflow.error.Code``."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class ServingError(Exception):
    """A fault with a canonical code and a message for the caller.

    The message names the servable, what is wrong and what to do; it holds no
    traceback and no path of the server that the caller did not send.

    Attributes:
        code: The canonical code; fixed by the subclass.
        message: What happened, for people; clients see it cut at 1,024 characters.
        retry_after_s: When not None, the caller may retry after this many
            seconds (sent as ``google.rpc.RetryInfo``).

    """

    code: ClassVar[Code] = Code.UNKNOWN

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        if not message.isascii():
            # A model's text may contain half a surrogate pair, which no encoding
            # accepts.
            message = message.encode(errors="backslashreplace").decode()
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"

    def to_bytes(self, limit_bytes: int) -> bytes:
        """Returns what ``error_from`` needs beside the code, cut to a size >= 1,024."""
        return self.message.encode()[:limit_bytes]

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.retry_after_s)


def _rebuild(
    kind: type[ServingError], message: str, retry_after_s: float | None
) -> ServingError:
    return kind(message, retry_after_s=retry_after_s)


class Cancelled(ServingError):
    """The caller is gone, or the work was called off."""

    code = Code.CANCELLED


class Unknown(ServingError):
    """A fault of no known kind."""

    code = Code.UNKNOWN


class InvalidArgument(ServingError):
    """The request is wrong whatever the state of the server."""

    code = Code.INVALID_ARGUMENT


_ITEMS_MARK: Final = b"\0items"


class InvalidItems(InvalidArgument):
    """Some rows of a call are wrong; none was computed.

    Whoever joined several requests into the call fails those that own a wrong row (see
    :meth:`within`) and runs the others again without them.

    Attributes:
        rows: What is wrong, by row of the call; at least one.
        context: The version and signature, for the message.

    """

    def __init__(self, rows: Mapping[int, str], context: str = "") -> None:
        first = min(rows)
        more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
        who = f"{context}: " if context else ""
        super().__init__(f"{who}row {first} is invalid: {rows[first]}{more}")
        self.rows = dict(rows)
        self.context = context

    def within(self, start: int, stop: int) -> InvalidItems | None:
        """Returns the error of the request that owns rows ``start`` to ``stop``.

        Its rows are counted from ``start``; None if all of them are valid.
        """
        own = {
            row - start: why for row, why in self.rows.items() if start <= row < stop
        }
        return InvalidItems(own, self.context) if own else None

    def after(self, num_rows: int) -> InvalidItems:
        """Returns the error of a request whose first rows were in another call."""
        rows = {row + num_rows: why for row, why in self.rows.items()}
        return InvalidItems(rows, self.context)

    def to_bytes(self, limit_bytes: int) -> bytes:
        """Returns the rows as well.

        Rows that do not fit are left out, but never the first. The others are run
        again, and wrong rows among them show then.
        """
        rows = {row: why[:200] for row, why in sorted(self.rows.items())}
        while True:
            form = json.dumps([self.context[:200], list(rows.items())])
            data = _ITEMS_MARK + form.encode()
            if len(data) <= limit_bytes or len(rows) == 1:
                return data
            rows = dict(list(rows.items())[: len(rows) // 2])

    def __reduce__(self) -> tuple[object, ...]:
        return InvalidItems, (self.rows, self.context)


class DeadlineExceeded(ServingError):
    """The caller's deadline passed first."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(ServingError):
    """No such model, version or path."""

    code = Code.NOT_FOUND


class AlreadyExists(ServingError):
    """What was to be created is there already."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(ServingError):
    """The caller may not do this, from here or at all."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(ServingError):
    """A budget (memory, message size, receive window) is used up."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(ServingError):
    """Right request, wrong state; retrying alone does not help."""

    code = Code.FAILED_PRECONDITION


class Quarantined(FailedPrecondition):
    """The version crashed too often; it is tried again after a pause, or on request."""


class Aborted(ServingError):
    """Lost to a concurrent change; start over."""

    code = Code.ABORTED


class OutOfRange(ServingError):
    """Past a valid range."""

    code = Code.OUT_OF_RANGE


class Unimplemented(ServingError):
    """Not offered by this server."""

    code = Code.UNIMPLEMENTED


class Internal(ServingError):
    """A fault of the server or of a model it runs."""

    code = Code.INTERNAL


class InterpreterDied(Internal):
    """The interpreter ended while it ran the request.

    Requests that were joined into the call must not be run again: the one at fault
    would end the next interpreter too.
    """


class Unavailable(ServingError):
    """Not now: full, draining or restarting. Retry after a pause."""

    code = Code.UNAVAILABLE


class DataLoss(ServingError):
    """Stored bytes are damaged."""

    code = Code.DATA_LOSS


class Unauthenticated(ServingError):
    """The caller did not show who it is."""

    code = Code.UNAUTHENTICATED


BY_CODE: Final[dict[Code, type[ServingError]]] = {
    kind.code: kind for kind in ServingError.__subclasses__()
}


def error_from(code: int, data: bytes) -> ServingError:
    """Returns the error that another process has written by ``to_bytes``.

    Raises:
        ValueError: No error has that code.

    """
    kind = BY_CODE.get(Code(code))
    if kind is None:
        raise ValueError(f"{code} is the code of no error")
    if data.startswith(_ITEMS_MARK):
        with contextlib.suppress(ValueError, TypeError):
            context, rows = json.loads(data[len(_ITEMS_MARK) :])
            return InvalidItems({int(row): str(why) for row, why in rows}, str(context))
    return kind(data.decode(errors="replace") or "no message")


_NO_THREAD: Final = "can't start new thread"  # in the words of CPython's _thread


def serving_error(error: BaseException, context: str) -> ServingError:
    """Returns ``error`` as a ``ServingError``.

    A ``ServingError`` is returned as it is. If the system refused a thread, the result
    is ``Unavailable`` with the limits in force. Anything else becomes ``Internal`` with
    ``context`` (which names the servable), the exception's type and its text. The
    original is kept as ``__cause__`` for the log.
    """
    if isinstance(error, ServingError):
        return error
    wrapped: ServingError
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        # Imported here because it is rarely needed.
        from tfs.core.system.limits import thread_limits

        wrapped = Unavailable(f"{context}: no more threads: {thread_limits()}")
        wrapped.__cause__ = error
        return wrapped
    wrapped = Internal(
        f"{context}: {type(error).__name__}: {text_of(error) or 'no message'}"
    )
    wrapped.__cause__ = error
    return wrapped


# A slash within a word is none of a path: "digits/3", "and/or".
_PATH: Final = re.compile(
    r"[a-z][a-z0-9+.-]*://[^\s'\",;)]*[^\s'\",;:)]|(?<![\w.])/[^\s'\",;:)]+"
)


def without_paths(text: str) -> str:
    """Returns a text with an ellipsis for each path and each URL: for anybody to read."""
    return _PATH.sub("…", text)


def shown_to_callers(error: ServingError) -> ServingError:
    """Returns the same error without paths of the server."""
    shown = copy.copy(error)
    shown.message = without_paths(error.message)
    return shown


_TRACEBACK, _CAUSE, _CONTEXT = (
    vars(BaseException)[name] for name in ("__traceback__", "__cause__", "__context__")
)


def forget_frames(error: BaseException) -> None:
    """Drops the tracebacks of an error and its causes.

    Otherwise an error that is kept would keep alive the local variables of every frame
    it passed through, models of gigabytes among them. Log the traceback first.
    """
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        # Past the class's own attributes: a frozen dataclass, for one, refuses this.
        _TRACEBACK.__set__(each, None)
        chain = (_CAUSE.__get__(each), _CONTEXT.__get__(each))
        left += [e for e in chain if e is not None]


def text_of(error: BaseException) -> str:
    """Returns an exception's text, or nothing if asking for it fails."""
    try:
        return str(error)
    except BaseException:  # a model's own error class may do anything
        return ""


_MOST_ERRORS: Final = 10  # a chain may be a circle: anybody can set an error's cause


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and those that led to it, the nearest first; ten at most."""
    each: BaseException | None = error
    for _ in range(_MOST_ERRORS):
        if each is None:
            return
        yield each
        each = each.__cause__ or each.__context__


def is_out_of_threads(error: BaseException) -> bool:
    """Whether ``error``, or what led to it, is a thread or process that was refused."""
    return any(
        (isinstance(each, RuntimeError) and _NO_THREAD in str(each))
        or (isinstance(each, OSError) and each.errno == errno.EAGAIN)
        for each in chain_of(error)
    )
