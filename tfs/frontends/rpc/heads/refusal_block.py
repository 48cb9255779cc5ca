"""The headers of a plain HTTP answer to what is not gRPC, the same through both transports."""

from __future__ import annotations

from tfs.frontends.rpc.heads.hpack_decoder import encode_literal
from tfs.frontends.rpc.heads.request_head import HttpRefusal


def refusal_block(refusal: HttpRefusal) -> bytes:
    """Returns a header block without a body's headers, which enters no dynamic table."""
    block = encode_literal(b":status", str(refusal.status).encode())
    if refusal.status == 405:
        block += encode_literal(b"allow", b"POST")
    return block
