"""The settings that the client has sent (RFC 9113, section 6.5)."""

from __future__ import annotations

from tfs.frontends.http2.frames import (
    DEFAULT_FRAME_SIZE,
    DEFAULT_TABLE_SIZE,
    DEFAULT_WINDOW,
    LARGEST_FRAME_SIZE,
    LARGEST_WINDOW,
    ConnectionFault,
    ErrorCode,
    Setting,
    parse_settings,
)


class PeerSettings:
    """The settings that concern a server that pushes nothing. Loop-confined.

    A HEADER_TABLE_SIZE below the default must be answered even by an encoder that never
    indexes: its next block begins with an update of the table's size (RFC 9113 section
    4.3.1), or the client closes the connection. Ours sets it to 0, so that once is
    enough. MAX_CONCURRENT_STREAMS and ENABLE_PUSH are about pushing;
    MAX_HEADER_LIST_SIZE is advice, and our header lists are short.

    Attributes:
        initial_window: Send window of a new stream, in bytes.
        max_frame_size: Largest frame payload that the peer takes, in bytes.
        max_whole_size: Largest payload that may be sent together with the header blocks
            around it. It is ``max_frame_size``, or 0 while the next block must begin
            with an update of the table's size.
        needs_table_update: Whether the next block must begin so.

    """

    __slots__ = (
        "_has_updated_table",
        "initial_window",
        "max_frame_size",
        "max_whole_size",
        "needs_table_update",
    )

    def __init__(self) -> None:
        self.initial_window = DEFAULT_WINDOW
        self.max_frame_size = self.max_whole_size = DEFAULT_FRAME_SIZE
        self.needs_table_update = False
        self._has_updated_table = False

    def update(self, payload: bytes) -> int:
        """Applies a SETTINGS payload in order.

        Returns:
            By how many bytes the windows of the open streams change; may be negative.

        Raises:
            ConnectionFault: A value is out of its range.

        """
        before = self.initial_window
        for key, value in parse_settings(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW:
                    raise ConnectionFault(
                        ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE too large"
                    )
                self.initial_window = value
            elif key == Setting.MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_SIZE <= value <= LARGEST_FRAME_SIZE:
                    raise ConnectionFault(
                        ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range"
                    )
                self.max_frame_size = value
            elif key == Setting.HEADER_TABLE_SIZE and value < DEFAULT_TABLE_SIZE:
                self.needs_table_update = not self._has_updated_table
            elif key == Setting.ENABLE_PUSH and value > 1:
                raise ConnectionFault(
                    ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1"
                )
        self.max_whole_size = 0 if self.needs_table_update else self.max_frame_size
        return self.initial_window - before

    def on_table_update(self) -> None:
        """Takes note that the table's size was set to 0."""
        self.needs_table_update = False
        self._has_updated_table = True
        self.max_whole_size = self.max_frame_size
