"""SETTINGS values are applied in order and checked for their range."""

from __future__ import annotations

import pytest

from tests.frontends.express.wire import parse_frames
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import ConnectionFault, ErrorCode, Setting
from tfs.frontends.http2.peer_settings import PeerSettings


def payload(*pairs: tuple[int, int]) -> bytes:
    return b"".join(
        parse_frames(frames.settings({key: value}))[0].payload  # type: ignore[dict-item]
        for key, value in pairs
    )


def test_defaults_are_those_of_the_rfc() -> None:
    """The RFC's defaults hold until the client says otherwise."""
    settings = PeerSettings()
    assert (settings.initial_window, settings.max_frame_size) == (65_535, 16_384)


def test_values_apply_in_order_and_windows_move_by_the_difference() -> None:
    """The last of a repeated setting counts; unknown ones do not."""
    settings = PeerSettings()
    moved = settings.update(
        payload(
            (Setting.INITIAL_WINDOW_SIZE, 10),
            (0xF0F0, 5),
            (Setting.MAX_FRAME_SIZE, 20_000),
            (Setting.INITIAL_WINDOW_SIZE, 65_000),
        )
    )
    assert moved == 65_000 - 65_535
    assert settings.max_frame_size == 20_000


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        (Setting.INITIAL_WINDOW_SIZE, 1 << 31, ErrorCode.FLOW_CONTROL_ERROR),
        (Setting.MAX_FRAME_SIZE, 16_383, ErrorCode.PROTOCOL_ERROR),
        (Setting.MAX_FRAME_SIZE, 1 << 24, ErrorCode.PROTOCOL_ERROR),
        (Setting.ENABLE_PUSH, 2, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_value_out_of_range_is_a_fault(
    key: Setting, value: int, code: ErrorCode
) -> None:
    """The fault has the code that RFC 9113 section 6.5.2 asks for."""
    with pytest.raises(ConnectionFault) as caught:
        PeerSettings().update(payload((key, value)))
    assert caught.value.code is code
