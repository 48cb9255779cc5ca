"""Our own calls to a gRPC server over one HTTP/2 connection, without a socket.

It is the counterpart of :mod:`~tfs.frontends.http2.connection` for unary calls: bytes go in
through :meth:`ClientConnection.receive`, what is to be sent collects in ``out``, and each
request hears its outcome once. grpcio's client takes ten times the processor time, most of
it for a thread that it wakes for each call.

The server is one of ours or was named by the operator, so its answers are not bounded.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final
from urllib.parse import unquote_to_bytes

from tfs.core.errors import BY_CODE, Code, Internal, ServingError, Unavailable
from tfs.core.tensor_view import Buffer
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import (
    ACK,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    LARGEST_WINDOW,
    PADDED,
    PREFACE,
    ConnectionFault,
    ErrorCode,
    FrameType,
    Setting,
    unpack_head,
    unpack_uint32,
)
from tfs.frontends.http2.hpack_decoder import HpackDecoder, encode_literal
from tfs.frontends.http2.stream import PREFIX_SIZE
from tfs.frontends.http2.unary_request import Fields, Outcome, UnaryRequest
from tfs.frontends.listener import UNIX
from tfs.frontends.status_details import DETAILS_KEY

_FRAME_SIZE: Final = 262_144  # of the longest frame that we take
_MAX_BLOCK_BYTES: Final = 65_536
_MAX_KNOWN_BLOCKS: Final = 64
_HALF_WINDOW: Final = 1 << 30
_MOST_STREAMS: Final = 1024  # unless the server says how many
_SMALLEST_TABLE: Final = b"\x20"
"""Begins our first header block, and says that we use no dynamic table."""

_pack_prefix: Final = Struct(">BI").pack
_unpack_prefix: Final = Struct(">BI").unpack_from

# What an HTTP status means that comes without a gRPC status (gRPC's
# doc/http-grpc-status-mapping.md).
_BY_HTTP: Final = {
    b"400": Code.INTERNAL,
    b"401": Code.UNAUTHENTICATED,
    b"403": Code.PERMISSION_DENIED,
    b"404": Code.UNIMPLEMENTED,
    b"429": Code.UNAVAILABLE,
    b"502": Code.UNAVAILABLE,
    b"503": Code.UNAVAILABLE,
    b"504": Code.UNAVAILABLE,
}
_BY_RESET: Final[Mapping[int, Code]] = {
    ErrorCode.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}
_BY_STATUS: Final = {str(int(code)).encode(): code for code in BY_CODE}
_OPENING: Final = (
    b"\x83"  # :method POST, of the static table
    + encode_literal(b"te", b"trailers")
    + encode_literal(b"content-type", b"application/grpc")
)
_SCHEMES: Final = {False: b"\x86", True: b"\x87"}


class ClientConnection:
    """The state of one connection. Confined to one thread.

    Attributes:
        address: The server's, "host:port" or "unix:/path".
        out: What is to be sent, in order.
        is_leaving: Whether it takes no further requests; those under way go on.

    Args:
        address: The server's.
        is_secure: Whether it is over TLS.
        on_refused: Takes a request that the server has not begun, and will not, because
            it ends the connection. Once for each.
        error_of: Makes an error of a code, its message and serialized details.

    """

    def __init__(
        self,
        address: str,
        is_secure: bool,
        on_refused: Callable[[UnaryRequest], None],
        error_of: Callable[[Code, str, bytes], ServingError],
    ) -> None:
        announced = {
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: LARGEST_WINDOW,
            Setting.MAX_FRAME_SIZE: _FRAME_SIZE,
        }
        widened = frames.window_update(0, LARGEST_WINDOW - DEFAULT_WINDOW)
        self.out: list[Buffer] = [PREFACE + frames.settings(announced) + widened]
        self.is_leaving = False
        self.address = address
        authority = "localhost" if address.startswith(UNIX) else address
        self._host = encode_literal(b":authority", authority.encode())
        self._scheme = _SCHEMES[is_secure]
        self._on_refused = on_refused
        self._error_of = error_of
        self._heads: dict[str, bytes] = {}  # what all requests of a method begin with
        self._opening = _SMALLEST_TABLE
        self._next_id = 1
        self._open: dict[int, UnaryRequest] = {}
        self._waiting: deque[UnaryRequest] = deque()  # for others to end
        self._sending: deque[UnaryRequest] = deque()  # those that are not sent whole
        self._window = DEFAULT_WINDOW  # of the connection, for what we send
        self._first_window = DEFAULT_WINDOW  # of a stream
        self._frame_size = DEFAULT_FRAME_SIZE
        # Negative before its first SETTINGS, so that requests wait: some servers punish
        # who opens many without having read how many they take.
        self._most_streams = -1
        self._received_bytes = 0  # for which the window was not raised again
        self._rest = b""
        self._decoder = HpackDecoder(max_list_bytes=_MAX_BLOCK_BYTES)
        self._known: dict[bytes, Fields] = {}
        self._known_at = 0  # the decoder's generation
        self._block = bytearray()  # an unfinished one, and its stream
        self._block_id = 0
        self._block_ends = False

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._open and not self._waiting

    @property
    def has_sendable(self) -> bool:
        """Whether ``fill`` would bring more."""
        return self._window > 0 and any(each.window > 0 for each in self._sending)

    @property
    def is_open(self) -> bool:
        """Whether the server has spoken: its first SETTINGS say how much it takes."""
        return self._most_streams >= 0

    # -- sending ----------------------------------------------------------------------

    def begin(self, request: UnaryRequest) -> None:
        """Sends a request, as soon as the server takes as many at a time."""
        if len(self._open) >= self._most_streams:
            self._waiting.append(request)
            return
        stream_id = request.stream_id = self._next_id
        self._next_id += 2
        self._open[stream_id] = request
        if self._next_id > LARGEST_WINDOW:
            self._on_goaway(LARGEST_WINDOW)
        request.forget()
        request.window = self._first_window
        block = self._head_of(request.path) + request.fields
        if self._opening:
            block, self._opening = self._opening + block, b""
        size = PREFIX_SIZE + len(request.message)
        if (
            size <= self._window
            and size <= request.window
            and size <= self._frame_size
            and len(block) <= DEFAULT_FRAME_SIZE
        ):
            self._window -= size
            request.num_sent = size
            self.out += (
                frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, block)
                + frames.frame_head(FrameType.DATA, END_STREAM, stream_id, size)
                + _pack_prefix(0, len(request.message)),
                request.message,
            )
            return
        kind = FrameType.HEADERS
        while len(block) > DEFAULT_FRAME_SIZE:
            self.out.append(
                frames.frame(kind, 0, stream_id, block[:DEFAULT_FRAME_SIZE])
            )
            block, kind = block[DEFAULT_FRAME_SIZE:], FrameType.CONTINUATION
        self.out.append(frames.frame(kind, END_HEADERS, stream_id, block))
        self._sending.append(request)

    def fill(self, num_bytes: int) -> None:
        """Adds about so many bytes of long requests to ``out``, as windows allow."""
        sending = self._sending
        while num_bytes > 0 and self.has_sendable:
            request = sending.popleft()
            size = min(request.window, self._window, self._frame_size, request.num_left)
            if size > 0:
                num_bytes -= size
                self._send_some(request, size)
            if request.num_left:
                sending.append(request)

    def give_up(self, request: UnaryRequest) -> None:
        """Forgets a request, which hears no more of it."""
        if self._open.get(request.stream_id) is request:
            self.out.append(frames.rst_stream(request.stream_id, ErrorCode.CANCEL))
            self._close(request)
        else:
            with contextlib.suppress(ValueError):
                self._waiting.remove(request)

    def end(self, error: ServingError) -> None:
        """Ends every request with an error: the connection is lost."""
        self.is_leaving = True
        self._waiting.extendleft(reversed(self._open.values()))
        self._open.clear()
        while self._waiting:  # an outcome may have others given up
            self._waiting.popleft().on_done(error)

    def _head_of(self, path: str) -> bytes:
        head = self._heads.get(path)
        if head is None:
            # Pseudo-headers come first.
            head = self._heads[path] = (
                _OPENING[:1]
                + self._scheme
                + encode_literal(b":path", path.encode())
                + self._host
                + _OPENING[1:]
            )
        return head

    def _send_some(self, request: UnaryRequest, size: int) -> None:
        flags = END_STREAM if size == request.num_left else 0
        head = frames.frame_head(FrameType.DATA, flags, request.stream_id, size)
        begin = request.num_sent - PREFIX_SIZE
        request.num_sent += size
        request.window -= size
        self._window -= size
        if begin < 0:
            prefix = _pack_prefix(0, len(request.message))[begin:][:size]
            self.out.append(head + prefix)
            size -= len(prefix)
            begin = 0
        else:
            self.out.append(head)
        if size:
            self.out.append(memoryview(request.message)[begin : begin + size])

    # -- receiving --------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Takes bytes from the server.

        Raises:
            ConnectionFault: The server broke the protocol; the connection has to close.

        """
        if self._rest:
            data = self._rest + data
        index, size = 0, len(data)
        while size - index >= HEAD_SIZE:
            word, flags, stream_id = unpack_head(data, index)
            kind = word & 0xFF
            begin = index + HEAD_SIZE
            end = begin + (word >> 8)
            if end > size:
                if end - begin > _FRAME_SIZE:
                    raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame too long")
                break
            stream_id &= LARGEST_WINDOW
            frames.check_head(kind, flags, stream_id, end - begin)
            goes_on = stream_id if kind == FrameType.CONTINUATION else 0
            if goes_on != self._block_id:
                raise ConnectionFault(
                    ErrorCode.PROTOCOL_ERROR, "a header block that does not go on"
                )
            index = end
            if kind == FrameType.DATA:
                self._on_data(flags, stream_id, memoryview(data)[begin:end])
            elif kind == FrameType.HEADERS:
                self._block_id = stream_id
                self._block_ends = bool(flags & END_STREAM)
                piece = frames.first_piece(flags, stream_id, data[begin:end])
                self._on_piece(flags, piece)
            elif kind == FrameType.CONTINUATION:
                self._on_piece(flags, data[begin:end])
            else:
                self._on_control(kind, flags, stream_id, data[begin:end])
        self._rest = data[index:]
        if self._received_bytes > _HALF_WINDOW:
            self.out.append(frames.window_update(0, self._received_bytes))
            self._received_bytes = 0

    def _on_data(self, flags: int, stream_id: int, payload: memoryview) -> None:
        self._received_bytes += len(payload)
        request = self._open.get(stream_id)
        if request is None:
            return  # it was given up
        if flags & PADDED:
            pad = payload[0] if payload else 0
            if pad >= len(payload):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding too long")
            payload = payload[1 : len(payload) - pad]
        request.parts.append(payload)
        if flags & END_STREAM:
            self._finish(request, {})

    def _on_piece(self, flags: int, piece: bytes) -> None:
        """Takes a piece of a header block."""
        if self._block or not flags & END_HEADERS:
            self._block += piece
            if len(self._block) > _MAX_BLOCK_BYTES:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "headers too long")
            piece = bytes(self._block)
        if not flags & END_HEADERS:
            return
        stream_id, self._block_id = self._block_id, 0
        self._block.clear()
        fields = self._known.get(piece) or self._decode(piece)
        request = self._open.get(stream_id)
        if request is None:
            return
        if self._block_ends:
            self._finish(request, fields)
        elif not fields.get(b":status", b"").startswith(b"1"):
            request.begins = fields

    def _decode(self, block: bytes) -> Fields:
        decoder = self._decoder
        fields = dict(decoder.decode(block))
        if decoder.generation != self._known_at or len(self._known) > _MAX_KNOWN_BLOCKS:
            self._known.clear()
            self._known_at = decoder.generation
        else:
            self._known[block] = fields  # it changes no table, and means this again
        return fields

    def _on_control(
        self, kind: int, flags: int, stream_id: int, payload: bytes
    ) -> None:
        if kind == FrameType.SETTINGS and not flags & ACK:
            if self._most_streams < 0:
                self._most_streams = _MOST_STREAMS
            for key, value in frames.parse_settings(payload):
                self._set(key, value)
            self.out.append(frames.SETTINGS_ACK)
            self._begin_waiting()
        elif kind == FrameType.PING and not flags & ACK:
            self.out.append(frames.ping(payload, ack=True))
        elif kind == FrameType.WINDOW_UPDATE:
            more = unpack_uint32(payload)[0] & LARGEST_WINDOW
            request = self._open.get(stream_id)
            if not stream_id:
                self._window += more
            elif request is not None:
                request.window += more
        elif kind == FrameType.RST_STREAM:
            self._on_reset(stream_id, unpack_uint32(payload)[0])
        elif kind == FrameType.GOAWAY:
            self._on_goaway(unpack_uint32(payload)[0] & LARGEST_WINDOW)
        elif kind == FrameType.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "we take no pushes")

    def _set(self, key: int, value: int) -> None:
        if key == Setting.INITIAL_WINDOW_SIZE:
            more, self._first_window = value - self._first_window, value
            for request in self._open.values():
                request.window += more
        elif key == Setting.MAX_FRAME_SIZE:
            self._frame_size = value
        elif key == Setting.MAX_CONCURRENT_STREAMS:
            self._most_streams = value

    def _on_reset(self, stream_id: int, code: int) -> None:
        request = self._open.get(stream_id)
        if request is None:
            return
        self._close(request)
        kind = BY_CODE[_BY_RESET.get(code, Code.INTERNAL)]
        said = f"{self.address} reset the call (HTTP/2 error {code})"
        request.on_done(kind(said))

    def _on_goaway(self, last_id: int) -> None:
        self.is_leaving = True
        self._most_streams = 0
        refused = [each for key, each in self._open.items() if key > last_id]
        for request in refused:
            self._close(request)
        self._waiting.extendleft(reversed(refused))
        while self._waiting:
            request = self._waiting.popleft()
            if request.was_refused:
                request.on_done(Unavailable(f"{self.address} refused the call twice"))
            else:
                request.was_refused = True
                self._on_refused(request)

    def _finish(self, request: UnaryRequest, fields: Fields) -> None:
        """Tells a request its outcome, which came with the end of its stream."""
        if request.num_left:  # the server answered without having read it all
            self.out.append(frames.rst_stream(request.stream_id, ErrorCode.CANCEL))
        self._close(request)
        begins = request.begins or fields
        status = fields.get(b"grpc-status")
        if status == b"0":
            request.on_done(self._message(request.parts))
        elif status is None:
            http = begins.get(b":status", b"")
            kind = BY_CODE[_BY_HTTP.get(http, Code.UNKNOWN)]
            said = f"without a gRPC status (HTTP {http.decode('latin-1')})"
            request.on_done(kind(f"{self.address} answered {said}"))
        else:
            request.on_done(self._error(status, fields))

    def _message(self, parts: list[Buffer]) -> Outcome:
        """Returns the one message in DATA."""
        if not parts or len(parts[0]) < PREFIX_SIZE:
            parts = [b"".join(parts)]
        num_bytes = sum(map(len, parts)) - PREFIX_SIZE
        if num_bytes < 0 or _unpack_prefix(parts[0]) != (0, num_bytes):
            return Internal(f"the answer of {self.address} is no plain message")
        return b"".join((memoryview(parts[0])[PREFIX_SIZE:], *parts[1:]))

    def _error(self, status: bytes, fields: Fields) -> ServingError:
        text = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode(
            errors="replace"
        )
        raw = b""
        details = fields.get(DETAILS_KEY.encode(), b"")
        with contextlib.suppress(binascii.Error):
            raw = base64.b64decode(details + b"=" * (-len(details) % 4))
        return self._error_of(_BY_STATUS.get(status, Code.UNKNOWN), text, raw)

    def _close(self, request: UnaryRequest) -> None:
        del self._open[request.stream_id]
        if request.num_left:
            with contextlib.suppress(ValueError):
                self._sending.remove(request)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._open) < self._most_streams:
            self.begin(self._waiting.popleft())
