"""What is known of streams that are not there."""

from __future__ import annotations

import pytest

from tfs.frontends.http2.stream import StreamState, StreamTable


def _table(last_id: int) -> StreamTable:
    table = StreamTable()
    table.last_id = last_id
    return table


@pytest.mark.parametrize(
    ("stream_id", "state"),
    [
        (5, StreamState.CLOSED),
        (1, StreamState.CLOSED),
        (7, StreamState.IDLE),
        (4, StreamState.IDLE),
        (8, StreamState.IDLE),
    ],
)
def test_an_unknown_stream_is_closed_or_yet_to_be_opened(
    stream_id: int, state: StreamState
) -> None:
    """Odd ids up to the last are closed; higher and even ones are idle."""
    assert _table(5).state_of(stream_id) is state


def test_a_stream_we_reset_is_told_apart_for_a_while() -> None:
    """The latest thousand are remembered, the oldest forgotten first."""
    table = _table(5001)
    for stream_id in range(1, 3001, 2):
        table.remember_reset(stream_id)
    assert table.state_of(2999) is StreamState.RESET
    assert table.state_of(1) is StreamState.CLOSED
