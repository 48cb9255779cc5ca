"""One error tree, with gRPC's codes."""

from __future__ import annotations

import errno
import pickle
from dataclasses import dataclass

import pytest

from tfs.core.errors import (
    BY_CODE,
    Code,
    DataLoss,
    Internal,
    InvalidArgument,
    InvalidItems,
    ServingError,
    Unavailable,
    Unknown,
    chain_of,
    error_from,
    forget_frames,
    is_out_of_threads,
    serving_error,
)


def test_every_code_but_ok_has_its_error() -> None:
    """A front end maps in both directions without a gap."""
    assert set(BY_CODE) == set(Code) - {Code.OK}
    assert all(kind.code is code for code, kind in BY_CODE.items())


def test_codes_are_numbered_as_in_grpc() -> None:
    """The numbers are on the wire."""
    assert [int(code) for code in Code] == list(range(17))
    assert (Code.NOT_FOUND, Code.UNAVAILABLE) == (5, 14)


def test_an_error_says_its_code_and_message() -> None:
    """Logs and statuses show both."""
    error = DataLoss("digest differs")
    assert str(error) == "DATA_LOSS: digest differs"
    assert (error.message, error.retry_after_s) == ("digest differs", None)


@pytest.mark.parametrize("kind", BY_CODE.values())
def test_an_error_survives_pickling(kind: type[ServingError]) -> None:
    """Errors cross from an interpreter's process, hint and all."""
    back = pickle.loads(pickle.dumps(kind("what", retry_after_s=1.5)))
    assert type(back) is kind
    assert (back.message, back.retry_after_s) == ("what", 1.5)


def test_a_serving_error_stays_as_it_is() -> None:
    """Where the code is known already, nothing is added."""
    error = Unavailable("full")
    assert serving_error(error, "loading a/1") is error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no"), "loading a/1: ValueError: no"),
        (KeyError(), "loading a/1: KeyError: no message"),
    ],
)
def test_any_other_error_becomes_internal(error: Exception, message: str) -> None:
    """The context names the servable, the original is kept for the log."""
    wrapped = serving_error(error, "loading a/1")
    assert type(wrapped) is Internal
    assert wrapped.message == message
    assert wrapped.__cause__ is error


def test_a_message_can_be_written_down_whatever_it_quotes() -> None:
    """Half a surrogate pair would make sending or logging the message fail."""
    error = Internal("model says: ä \ud800")
    assert error.message == "model says: ä \\ud800"
    assert str(error).encode() == "INTERNAL: model says: ä \\ud800".encode()


def test_an_error_without_a_kind_is_unknown() -> None:
    """The base of the tree has a code of its own."""
    assert ServingError("?").code is Unknown.code is Code.UNKNOWN


def test_invalid_items_cross_a_process_boundary_within_their_limit() -> None:
    """Rows that do not fit are left out; the first is always there."""
    error = InvalidItems(dict.fromkeys(range(100), "x" * 150), "m/1")
    data = error.to_bytes(4096)
    assert len(data) <= 4096
    again = error_from(error.code, data)
    assert isinstance(again, InvalidItems)
    assert again.context == "m/1"
    assert 0 in again.rows
    assert 1 < len(again.rows) < 100
    assert type(error_from(13, b"the weights are gone")) is Internal
    assert type(error_from(3, b"\0items[")) is InvalidArgument
    for code in (0, 99):
        with pytest.raises(ValueError, match=str(code)):
            error_from(code, data)


@dataclass(frozen=True)
class _Refused(Exception):
    reason: str


def test_frames_of_errors_that_refuse_attributes_are_dropped() -> None:
    """A model may raise a frozen dataclass; nothing but its own call may fail over it."""
    try:
        raise _Refused("too long")
    except _Refused as error:
        fault = serving_error(error, "m/1")
    assert fault.__cause__ is not None
    assert fault.__cause__.__traceback__ is not None
    forget_frames(fault)
    assert fault.__cause__.__traceback__ is None


def test_a_cause_counts_before_what_was_being_handled() -> None:
    """Who raised an error from another one says what led to it."""
    error, cause, context = ValueError("e"), ValueError("cause"), ValueError("context")
    error.__context__ = context
    assert list(chain_of(error)) == [error, context]
    error.__cause__ = cause
    assert list(chain_of(error)) == [error, cause]


def test_a_circle_of_causes_ends() -> None:
    """A model's errors may be linked in any way; looking through them must not hang."""
    error, cause = ValueError("e"), ValueError("cause")
    error.__cause__, cause.__cause__ = cause, error
    assert set(chain_of(error)) == {error, cause}
    assert not is_out_of_threads(error)


def test_a_refused_thread_is_known_by_whatever_came_of_it() -> None:
    """What ends a start is often the clean-up after it."""
    refused = RuntimeError("can't start new thread")
    later = RuntimeError("cannot join thread before it is started")
    later.__context__ = refused
    assert is_out_of_threads(refused)
    assert is_out_of_threads(later)
    assert is_out_of_threads(BlockingIOError(errno.EAGAIN, "fork"))
    assert not is_out_of_threads(RuntimeError("no such model"))
    assert not is_out_of_threads(FileNotFoundError(errno.ENOENT, "gone"))
