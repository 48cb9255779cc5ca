"""The table of stream states, entry by entry."""

from __future__ import annotations

import pytest

from tfs.frontends.http2.frames import ErrorCode
from tfs.frontends.http2.stream import (
    TRANSITIONS,
    Reaction,
    Signal,
    StreamState,
    step,
)

# Written down a second time, from RFC 9113 section 5.1 and not from the table: per
# state what each signal does. "=" accepts (the next state's number follows), "." ignores,
# "r" resets the stream, "C" closes the connection. The columns are the signals in order:
# DATA DATA+END HEADERS HEADERS+END RST_STREAM WINDOW_UPDATE.
EXPECTED = {
    StreamState.IDLE: "C C =1 =2 C C",
    StreamState.OPEN: "=1 =2 r =2 =3 =1",
    StreamState.REQUESTED: "r r r r =3 =2",
    StreamState.CLOSED: "C C C C . .",
    StreamState.RESET: ". . . . . .",
}
MARKS = {
    "=": Reaction.ACCEPT,
    ".": Reaction.IGNORE,
    "r": Reaction.RESET_STREAM,
    "C": Reaction.CLOSE_CONNECTION,
}


@pytest.mark.parametrize("state", EXPECTED, ids=lambda state: state.name)
def test_each_signal_does_what_the_rfc_says(state: StreamState) -> None:
    """Every (state, signal) pair has the reaction and next state of RFC 9113."""
    for signal, expected in zip(Signal, EXPECTED[state].split(), strict=True):
        found = step(state, signal)
        assert found.reaction is MARKS[expected[0]]
        if expected[1:]:
            assert found.next_state == int(expected[1])


def test_the_table_is_total() -> None:
    """No pair is missing, so no peer can reach a KeyError."""
    assert set(TRANSITIONS) == set(StreamState)
    for row in TRANSITIONS.values():
        assert set(row) == set(Signal)


def test_only_faults_carry_an_error_code() -> None:
    """A reset or a closed connection says why; nothing else has an error."""
    faults = (Reaction.RESET_STREAM, Reaction.CLOSE_CONNECTION)
    for row in TRANSITIONS.values():
        for found in row.values():
            is_fault = found.reaction in faults
            assert is_fault == (found.error is not ErrorCode.NO_ERROR)
