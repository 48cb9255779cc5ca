"""What grpcio gets of a client's headers: those that were checked, written anew.

A request whose path is not UTF-8 ends grpcio's server, with the calls of everybody
(seen with 1.85.1). So header blocks are decoded here, checked as express checks them,
and written again for grpcio, as literals that enter no table. grpcio reads nothing else.
A request that breaks HTTP/2's rules never reaches it, nor does one that is not gRPC, of
which grpcio would take some for calls.

The blocks of good requests could be passed on as they came. But then somebody would
only have to find bytes that grpcio reads in another way than we do. It takes padding
for headers, for example, and counts one byte less for a value of "-bin" headers that is
coded by Huffman and begins with NUL: so its table keeps headers that ours forgets, and
an index means one path here and another one there (both seen with 1.85.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tfs.frontends.rpc.frames import DEFAULT_TABLE_SIZE, ErrorCode
from tfs.frontends.rpc.heads.head_cache import HeadCache
from tfs.frontends.rpc.heads.hpack_decoder import (
    Header,
    HpackDecoder,
    encode_literal,
)
from tfs.frontends.rpc.heads.request_head import (
    HttpRefusal,
    MalformedHead,
    parse_head,
    parse_timeout,
)

_TIMEOUT: Final = b"grpc-timeout"
_BINARY: Final = b"-bin"
_NUL: Final = b"\0"


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """How long a client's headers may be. Immutable.

    Attributes:
        max_table_bytes: What grpcio announces for HPACK's dynamic table.
        max_list_bytes: Longest header list that grpcio takes, by RFC 7541's count.

    """

    max_table_bytes: int = DEFAULT_TABLE_SIZE
    max_list_bytes: int = 16_384


class RefusedHead(Exception):
    """A request that grpcio must not see; the connection is all right.

    Attributes:
        code: What its stream is to be reset with.
        answer: What its client is told instead if that can be; it does not speak gRPC.

    """

    def __init__(self, code: ErrorCode, answer: HttpRefusal | None = None) -> None:
        super().__init__(code.name)
        self.code = code
        self.answer = answer


@dataclass(frozen=True, slots=True)
class PassedHead:
    """A request's headers, for grpcio. Immutable.

    Attributes:
        block: The header block, which neither uses nor changes a dynamic table.
        num_bytes: How much it stands for, by RFC 7541's count.

    """

    block: bytes
    num_bytes: int


class ClientHeads:
    """Reads a client's header blocks, each once, in order. Confined to grpcio's thread.

    Args:
        limits: How long they may be.

    """

    def __init__(self, limits: HeadLimits) -> None:
        self._decoder = HpackDecoder(
            max(limits.max_table_bytes, DEFAULT_TABLE_SIZE), limits.max_list_bytes
        )
        self._cache = HeadCache(self._decoder, self._write)
        self._by_block = self._cache.by_block
        # Those of the last request without its deadline, which some clients never repeat;
        # and what was written of them.
        self._others: list[Header] | None = None
        self._literals = b""

    def read(self, block: bytes) -> PassedHead:
        """Returns what grpcio gets of a request's headers.

        Raises:
            ConnectionFault: HPACK broke; the connection must close.
            RefusedHead: Only this request is at fault.

        """
        return self._by_block.get(block) or self._cache.decode(block)

    def read_trailers(self, block: bytes) -> None:
        """Reads headers behind a request, which mean nothing to gRPC.

        Raises:
            ConnectionFault: HPACK broke; the connection must close.
            RefusedHead: Only this request is at fault.

        """
        try:
            self._cache.decode_trailers(block)
        except MalformedHead:
            raise RefusedHead(ErrorCode.PROTOCOL_ERROR) from None

    def skip(self, block: bytes) -> None:
        """Reads the headers of a request that nobody wants any more.

        Raises:
            ConnectionFault: HPACK broke; the connection must close.

        """
        self._cache.skip(block)

    def _write(self, headers: list[Header], was_cut: bool) -> PassedHead:
        if was_cut:
            # Clients make RESOURCE_EXHAUSTED of it.
            raise RefusedHead(ErrorCode.ENHANCE_YOUR_CALM)
        others, timeout = _without_timeout(headers)
        if others != self._others:
            try:
                head = parse_head(list(map(_in_text, headers)))
            except MalformedHead:
                raise RefusedHead(ErrorCode.PROTOCOL_ERROR) from None
            if isinstance(head.refusal, HttpRefusal):
                raise RefusedHead(ErrorCode.PROTOCOL_ERROR, head.refusal)
            self._literals = b"".join(encode_literal(*header) for header in others)
            self._others = others
        return PassedHead(self._literals + timeout, self._decoder.list_bytes)


def _in_text(header: Header) -> Header:
    """Returns a header as express would get it.

    grpcio tells clients that they may send the values of "-bin" headers as they are,
    behind a NUL, instead of in base64.
    """
    name, value = header
    if value[:1] == _NUL and name.endswith(_BINARY):
        return name, b""
    return header


def _without_timeout(headers: list[Header]) -> tuple[list[Header], bytes]:
    """Returns the headers without a deadline, and that as a literal."""
    timeouts = [header for header in headers if header[0] == _TIMEOUT]
    if len(timeouts) != 1:
        return headers, b""
    try:
        parse_timeout(timeouts[0][1])
    except ValueError:
        return headers, b""
    others = [header for header in headers if header[0] != _TIMEOUT]
    return others, encode_literal(*timeouts[0])
