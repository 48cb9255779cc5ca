"""How messages may be compressed."""

from __future__ import annotations

import enum


class Encoding(enum.Enum):
    """How the client compressed the messages that carry the compressed flag."""

    IDENTITY = "identity"
    GZIP = "gzip"
    DEFLATE = "deflate"
