"""Compressed messages: counted, admitted like any long message, and then unpacked.

A message may unpack to a thousand times its size. So one that does not stay short is
first unpacked only to learn its length, and none of it is kept: one beyond the limit is
never in memory, and any other has room when it comes. That takes the time twice, 1 ms a
megabyte. Rejected: trusting the length at the end of a gzip stream, which a client may
choose freely.
"""

from __future__ import annotations

import enum
import logging
import zlib
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from tfs.core.errors import (
    Internal,
    ResourceExhausted,
    ServingError,
    Unavailable,
    forget_frames,
    serving_error,
)
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.budget import LONG_BYTES

log = logging.getLogger(__name__)

T = TypeVar("T")

# With a bound on its output, zlib copies the input that it has not used. So input is
# passed in slices.
_INPUT_BYTES: Final = 16_384
_PIECE_BYTES: Final = 1 << 18


class Encoding(enum.Enum):
    """How the client compressed the messages that carry the compressed flag."""

    IDENTITY = "identity"
    GZIP = "gzip"
    DEFLATE = "deflate"


# zlib's codes for each container with the largest window. gRPC's deflate is zlib's
# format.
_WINDOWS: Final = {Encoding.GZIP: 31, Encoding.DEFLATE: 15}


def measure(
    body: bytes | memoryview, encoding: Encoding, max_bytes: int
) -> bytes | int:
    """Returns a short message as it is, and of another one the length.

    An empty body is an empty message, whatever its flag says, as in gRPC's own library.
    Blocks for about 1 ms per megabyte of output, so it must not run on the serving loop.
    Thread-safe.

    Raises:
        ServingError: RESOURCE_EXHAUSTED if the message is longer than ``max_bytes``.
            INTERNAL if it is not one whole stream of that encoding, or the encoding does
            not compress.

    """
    if encoding not in _WINDOWS:
        raise Internal("compressed message without grpc-encoding")
    if not body:
        return b""
    inflater = zlib.decompressobj(_WINDOWS[encoding])
    whole = memoryview(body)
    short = bytearray()
    size = 0
    try:
        for start in range(0, len(whole), _INPUT_BYTES):
            part: bytes | memoryview = whole[start : start + _INPUT_BYTES]
            while part and not inflater.eof:
                piece = inflater.decompress(part, _PIECE_BYTES)
                part = inflater.unconsumed_tail
                size += len(piece)
                if size > max_bytes:
                    raise _too_far(max_bytes)
                if size < LONG_BYTES:
                    short += piece
            if inflater.eof and start + _INPUT_BYTES < len(whole):
                raise _not_one_stream(encoding)
    except zlib.error as error:
        raise Internal(f"cannot decompress the request: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise _not_one_stream(encoding)
    return bytes(short) if size < LONG_BYTES else size


def unpack(body: bytes | memoryview, encoding: Encoding, size_bytes: int) -> bytes:
    """Returns a message of which :func:`measure` has told the length. Thread-safe."""
    return zlib.decompress(body, _WINDOWS[encoding], size_bytes)


def inflate(
    executor: Executor,
    loop: ServingLoop,
    body: bytes | memoryview,
    encoding: Encoding,
    max_bytes: int,
    is_over: Callable[[], bool],
    admit: Callable[[int, Callable[[], None]], bool],
    done: Callable[[bytes | ServingError], None],
) -> None:
    """Unpacks a message on the executor; ``done`` gets it, or its error, on the loop.

    Args:
        executor: Runs what takes long.
        loop: The loop.
        body: The message.
        encoding: How it is compressed.
        max_bytes: How long it may be.
        is_over: Whether nobody waits any more, so that any bytes will do. Any thread.
        admit: Takes room for so many bytes; returns False if it calls the function later.
        done: As above.

    """

    def on_measured(outcome: bytes | int | ServingError) -> None:
        if is_over() or not isinstance(outcome, int):
            done(b"" if isinstance(outcome, int) else outcome)
            return
        work = partial(unpack, body, encoding, outcome)
        go_on = partial(_run_apart, executor, loop, work, done)
        if admit(outcome, go_on):
            go_on()

    def measured() -> bytes | int:
        return b"" if is_over() else measure(body, encoding, max_bytes)

    _run_apart(executor, loop, measured, on_measured)


def _run_apart(
    executor: Executor,
    loop: ServingLoop,
    work: Callable[[], T],
    done: Callable[[T | ServingError], None],
) -> None:
    """Runs ``work`` on the executor, and then ``done`` with its outcome on the loop."""

    def run() -> None:
        outcome: T | ServingError
        try:
            outcome = work()
        except Exception as error:  # such as a MemoryError; the caller must hear of it
            if not isinstance(error, ServingError):
                log.exception("event=inflate_failed")
            outcome = serving_error(error, "cannot decompress the request")
            forget_frames(outcome)  # its traceback would keep the message in memory
        loop.post(partial(done, outcome))

    try:
        executor.submit(run)
    except RuntimeError:
        done(Unavailable("the server is shutting down"))


def _not_one_stream(encoding: Encoding) -> ServingError:
    return Internal(f"cannot decompress the request: not one {encoding.value} stream")


def _too_far(max_bytes: int) -> ServingError:
    return ResourceExhausted(
        f"decompressed message larger than max ({max_bytes} bytes)"
    )
