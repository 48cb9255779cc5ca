"""The table of stream states, entry by entry."""

from __future__ import annotations

import pytest

from tfs.frontends.http2.frames import ErrorCode, FrameType
from tfs.frontends.http2.states import (
    TRANSITIONS,
    Reaction,
    Signal,
    StreamState,
    received,
    step,
)

# Written down a second time, from RFC 9113 section 5.1 and not from the table: per
# state what each signal does. "=" accepts, "." ignores, "r" resets the stream,
# "C" closes the connection, "!" is forbidden to us; then the next state's number. The
# columns are the signals in order: DATA HEADERS PRIORITY RST_STREAM SETTINGS
# PUSH_PROMISE PING GOAWAY WINDOW_UPDATE CONTINUATION extension DATA+END HEADERS+END,
# then what we send: HEADERS DATA END_STREAM RST_STREAM.
EXPECTED = {
    StreamState.IDLE: "C0 =1 .0 C0 C0 C0 C0 C0 C0 C0 .0 C0 =3 !0 !0 !0 !0",
    StreamState.OPEN: "=1 r5 .1 =4 C1 C1 C1 C1 =1 C1 .1 =3 =3 =1 =1 =2 =5",
    StreamState.HALF_CLOSED_LOCAL: (
        ".2 r5 .2 =4 C2 C2 C2 C2 .2 C2 .2 =4 =4 !2 !2 !2 =5"
    ),
    StreamState.HALF_CLOSED_REMOTE: (
        "r5 r5 .3 =4 C3 C3 C3 C3 =3 C3 .3 r5 r5 =3 =3 =4 =5"
    ),
    StreamState.CLOSED: "C4 C4 .4 .4 C4 C4 C4 C4 .4 C4 .4 C4 C4 !4 !4 !4 !4",
    StreamState.RESET: ".5 .5 .5 .5 C5 C5 C5 C5 .5 C5 .5 .5 .5 !5 !5 !5 !5",
}
MARKS = {
    "=": Reaction.ACCEPT,
    ".": Reaction.IGNORE,
    "r": Reaction.RESET_STREAM,
    "C": Reaction.CLOSE_CONNECTION,
    "!": Reaction.FORBID,
}
PAIRS = [
    (state, signal, row.split()[signal])
    for state, row in EXPECTED.items()
    for signal in Signal
]


@pytest.mark.parametrize(
    ("state", "signal", "expected"),
    PAIRS,
    ids=[f"{state.name}-{signal.name}" for state, signal, _ in PAIRS],
)
def test_each_pair_does_what_the_rfc_says(
    state: StreamState, signal: Signal, expected: str
) -> None:
    """Every (state, signal) pair has the reaction and next state of RFC 9113."""
    found = step(state, signal)
    assert found.reaction is MARKS[expected[0]]
    assert found.next_state == int(expected[1])


def test_the_table_is_total() -> None:
    """No pair is missing, so no peer can reach a KeyError."""
    assert set(TRANSITIONS) == set(StreamState)
    for row in TRANSITIONS.values():
        assert set(row) == set(Signal)


def test_only_faults_carry_an_error_code() -> None:
    """A reset or a closed connection says why; nothing else has an error."""
    for row in TRANSITIONS.values():
        for found in row.values():
            is_fault = found.reaction in (
                Reaction.RESET_STREAM,
                Reaction.CLOSE_CONNECTION,
            )
            assert is_fault == (found.error is not ErrorCode.NO_ERROR)


def test_no_signal_leaves_a_final_state() -> None:
    """A stream that has ended never comes back to life."""
    for state in (StreamState.CLOSED, StreamState.RESET):
        assert {found.next_state for found in TRANSITIONS[state].values()} == {state}


def test_every_frame_type_has_its_signal() -> None:
    """END_STREAM matters for DATA and HEADERS only; unknown types are extensions."""
    for frame_type in FrameType:
        assert received(frame_type, False) == int(frame_type)
    assert received(FrameType.DATA, True) is Signal.RECEIVE_DATA_END
    assert received(FrameType.HEADERS, True) is Signal.RECEIVE_HEADERS_END
    assert received(FrameType.PING, True) is Signal.RECEIVE_PING
    assert received(0xEE, False) is Signal.RECEIVE_EXTENSION
