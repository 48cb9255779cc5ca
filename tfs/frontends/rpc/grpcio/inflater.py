"""Decompresses grpcio's requests within bounds, which that library does not.

grpcio decompresses a message as a whole before it looks at its length: sixty clients
that sent a megabyte each, of zeros, took six gigabytes. So it is told to leave that to
us (``grpc.per_message_decompression``). It does not tell us then which messages are
compressed. But they show it themselves:

- What begins like a gzip stream is one. It is no protobuf message: there is no wire
  type 7.
- What begins like a zlib stream, and is one, is one too. As protobuf it would begin
  with field 15, and none of our requests has such a field.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Final

from tfs.core.errors import (
    Internal,
    ResourceExhausted,
    ServingError,
    Unavailable,
    forget_frames,
)
from tfs.core.executor import Executor, ThreadExecutor
from tfs.frontends.rpc.answer_sizes import LARGE_BYTES
from tfs.frontends.rpc.encoding import Encoding
from tfs.frontends.rpc.inflation import decompress

_GZIP: Final = b"\x1f\x8b\x08"
_ZLIB: Final = 0x78  # with the window of 32 KB that every encoder has


class Inflater:
    """Decompresses messages, large ones one at a time. Confined to grpcio's thread.

    Args:
        max_bytes: Largest message, decompressed.
        max_suspicious_bytes: Largest message that shrank further than data with
            information does.
        executor: Decompresses large messages; by default a thread of its own, which
            ``close`` ends.

    """

    def __init__(
        self,
        max_bytes: int,
        max_suspicious_bytes: int,
        executor: Executor | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_suspicious_bytes = max_suspicious_bytes
        self._own_executor = executor is None
        self._executor = executor or ThreadExecutor(1, "grpcio-inflate")

    async def inflate(self, message: bytes) -> bytes | memoryview:
        """Returns a message as it was before its client compressed it, if it did.

        Raises:
            ResourceExhausted: It is too large then.
            Internal: It is not one whole gzip stream.
            Unavailable: The server is shutting down.

        """
        encoding = _encoding_of(message)
        if encoding is None:
            return message
        try:
            return await self._decompress(message, encoding)
        except Internal:
            if encoding is Encoding.DEFLATE:
                return message  # it only begins like one
            raise

    def close(self, deadline_s: float) -> None:
        """Ends the thread."""
        if self._own_executor:
            self._executor.close(deadline_s)

    async def _decompress(
        self, message: bytes, encoding: Encoding
    ) -> bytes | memoryview:
        if len(message) < LARGE_BYTES < self._max_bytes:
            try:
                return decompress(message, encoding, LARGE_BYTES)
            except ResourceExhausted as too_long:
                forget_frames(too_long)
        aio = asyncio.get_running_loop()
        turn: asyncio.Future[bytes | memoryview] = aio.create_future()
        post = aio.call_soon_threadsafe
        try:
            self._executor.submit(
                functools.partial(self._run, message, encoding, turn, post)
            )
        except RuntimeError:
            raise Unavailable("the server is shutting down") from None
        return await turn

    def _run(
        self,
        message: bytes,
        encoding: Encoding,
        turn: asyncio.Future[bytes | memoryview],
        post: Callable[..., object],
    ) -> None:
        # Runs on the executor's thread.
        outcome: bytes | memoryview | ServingError
        if turn.cancelled():
            return
        try:
            outcome = decompress(
                message, encoding, self._max_bytes, self._max_suspicious_bytes
            )
        except ServingError as error:
            forget_frames(error)  # its frames keep the message alive
            outcome = error
        # The server may have ended meanwhile, and its loop with it: nobody waits then.
        with contextlib.suppress(RuntimeError):
            post(_settle, turn, outcome)


def _settle(
    turn: asyncio.Future[bytes | memoryview],
    outcome: bytes | memoryview | ServingError,
) -> None:
    if turn.done():
        return
    if isinstance(outcome, ServingError):
        turn.set_exception(outcome)
    else:
        turn.set_result(outcome)


def _encoding_of(message: bytes) -> Encoding | None:
    """Returns how a message was compressed; None if it was not."""
    if message.startswith(_GZIP):
        return Encoding.GZIP
    if len(message) > 1 and message[0] == _ZLIB and not (_ZLIB << 8 | message[1]) % 31:
        return Encoding.DEFLATE
    return None
