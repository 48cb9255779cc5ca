"""A request of ours, and how far it has got."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from functools import lru_cache

from tfs.core.call import Metadata
from tfs.core.errors import ServingError
from tfs.core.tensor_view import Buffer
from tfs.frontends.http2.hpack_decoder import encode_literal
from tfs.frontends.http2.stream import PREFIX_SIZE

Outcome = bytes | ServingError
"""The answer to a request, or what came instead."""

Fields = dict[bytes, bytes]
"""The headers of an answer, by name."""


class UnaryRequest:
    """A request, and how far it has got. Confined to one thread.

    Attributes:
        message: What is sent.
        on_done: Told the outcome, once, and never after it was given up.

    Args:
        path: ``/package.Service/Method``.
        message: What to send.
        timeout_s: What is left of its deadline; the server is told, and nobody else.
        metadata: What its caller sent besides. Text that is not printable is left out:
            gRPC allows none, and some servers end the connection for it.
        on_done: Called from within whatever brings the outcome.

    """

    __slots__ = (
        "begins",
        "fields",
        "message",
        "num_sent",
        "on_done",
        "parts",
        "path",
        "stream_id",
        "was_refused",
        "window",
    )

    def __init__(
        self,
        path: str,
        message: Buffer,
        timeout_s: float | None,
        metadata: Metadata,
        on_done: Callable[[Outcome], None],
    ) -> None:
        self.path = path
        self.message = message
        self.on_done = on_done
        self.fields = _fields(tuple(metadata))
        if timeout_s is not None:
            self.fields += _timeout(timeout_s)
        self.was_refused = False  # by a server that ended its connection
        self.stream_id = 0  # none yet
        self.forget()

    def forget(self) -> None:
        """Forgets how far it has got, so that it can be sent anew."""
        self.num_sent = 0  # of the prefix and the message
        self.window = 0
        self.begins: Fields | None = None  # of the answer
        self.parts: list[Buffer] = []

    @property
    def num_left(self) -> int:
        """Bytes that are still to be sent."""
        return PREFIX_SIZE + len(self.message) - self.num_sent


@lru_cache(maxsize=256)
def _fields(metadata: tuple[tuple[str, str | bytes], ...]) -> bytes:
    return b"".join(
        encode_literal(
            key.encode(),
            base64.b64encode(value).rstrip(b"=")
            if isinstance(value, bytes)
            else value.encode("latin-1"),
        )
        for key, value in metadata
        if isinstance(value, bytes) or value.isprintable()
    )


def _timeout(timeout_s: float) -> bytes:
    """Returns ``grpc-timeout``, rounded up to three digits, as gRPC itself rounds it.

    So many requests begin with the same bytes, which the server has decoded before.
    """
    left_ms = max(1, math.ceil(min(timeout_s, 1e8) * 1e3))
    step = 10 ** max(0, len(str(left_ms)) - 3)
    left_ms = -(-left_ms // step) * step
    text = f"{left_ms}m" if left_ms < 10**8 else f"{min(left_ms // 1000, 10**8 - 1)}S"
    return encode_literal(b"grpc-timeout", text.encode())
