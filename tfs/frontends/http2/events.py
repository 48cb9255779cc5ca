"""The events that a connection reports to its owner."""

from __future__ import annotations

from typing import Protocol

from tfs.core.errors import ServingError
from tfs.frontends.http2.stream import Stream


class ConnectionEvents(Protocol):
    """What a connection tells its owner, from within ``receive``.

    For each stream, ``on_open`` comes first. Then come any number of ``on_message`` and
    one ``on_end``, or one ``on_request`` in place of them all. ``on_reset`` comes at
    most once, as the last. A stream that the owner has answered or reset brings no more
    events. The owner may call any sending method from within these.
    """

    def on_open(self, stream: Stream) -> None:
        """A request's headers arrived and were checked."""
        ...

    def on_request(self, stream: Stream, message: bytes) -> None:
        """One whole uncompressed message arrived and the client sends no more."""
        ...

    def on_message(
        self, stream: Stream, message: memoryview, is_compressed: bool
    ) -> None:
        """A whole message arrived."""
        ...

    def on_end(self, stream: Stream) -> None:
        """The client sends no more messages."""
        ...

    def on_fault(self, stream: Stream, error: ServingError) -> None:
        """The request cannot be read; the owner has to answer with ``error``."""
        ...

    def on_reset(self, stream: Stream) -> None:
        """The stream is gone, by the client's wish or fault, or with the connection."""
        ...

    def on_output(self) -> None:
        """There is something to send, though nothing was received."""
        ...
