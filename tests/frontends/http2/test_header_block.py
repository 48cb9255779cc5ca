"""Header blocks in pieces."""

from __future__ import annotations

import pytest

from tfs.frontends.http2.frames import (
    ConnectionFault,
    ErrorCode,
)
from tfs.frontends.http2.header_block import HeaderBlock
from tfs.frontends.http2.limits import ConnectionLimits


def _block(limits: ConnectionLimits | None = None) -> HeaderBlock:
    return HeaderBlock(limits or ConnectionLimits(), 0.0)


def test_pieces_are_joined_in_order() -> None:
    """The block waits under its stream's id until it is taken."""
    block = _block()
    block.begin(3, b"ab", ends_stream=True, now_s=7.0)
    block.append(b"")
    block.append(b"cd")
    assert (block.stream_id, block.ends_stream, block.since_s) == (3, True, 7.0)
    assert block.take() == b"abcd"
    assert block.stream_id == 0


def test_a_second_block_begins_empty() -> None:
    """Neither bytes nor the number of pieces are left of the one before."""
    block = _block(ConnectionLimits(max_continuations=1))
    for stream_id in (1, 3):
        block.begin(stream_id, b"x", ends_stream=False, now_s=0.0)
        block.append(b"y")
        assert block.take() == b"xy"


@pytest.mark.parametrize("pieces", [[b""] * 3, [bytes(4000), bytes(2500)]])
def test_too_many_pieces_or_bytes_are_a_nuisance(pieces: list[bytes]) -> None:
    """The bound counts pieces as well as bytes, so that empty ones are not free."""
    limits = ConnectionLimits(max_continuations=2, max_header_list_bytes=1500)
    block = _block(limits)
    block.begin(1, b"", ends_stream=False, now_s=0.0)
    for piece in pieces[:-1]:
        block.append(piece)
    with pytest.raises(ConnectionFault) as raised:
        block.append(pieces[-1])
    assert raised.value.code is ErrorCode.ENHANCE_YOUR_CALM
