"""The PEM files with which commands speak TLS, by the flags that name them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tfs.core.errors import InvalidArgument

if TYPE_CHECKING:
    import grpc

_CERTIFICATE: Final = "CERTIFICATE"
_KEY: Final = "PRIVATE KEY"


def silence_grpc() -> None:
    """Keeps grpc from writing a line for each handshake that fails.

    The error that the command prints says the same. Call it before grpc is imported. A
    GRPC_VERBOSITY that the user has set stays in force.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def read_credentials(
    ca: str, key: str | None, cert: str | None
) -> grpc.ChannelCredentials:
    """Returns credentials that trust ``ca``, and that present ``cert`` if it is given.

    The files are checked here, because grpc does not report a bad one: it tries to
    connect with what it could read.

    Raises:
        InvalidArgument: A file cannot be read or does not contain what its flag asks
            for; names the file.

    """
    import grpc

    return grpc.ssl_channel_credentials(
        _read(ca, _CERTIFICATE),
        _read(key, _KEY) if key else None,
        _read(cert, _CERTIFICATE) if cert else None,
    )


def _read(path: str, kind: str) -> bytes:
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error
    if f"{kind}-----".encode() not in text:
        raise InvalidArgument(f"{path} holds no {kind} in PEM form")
    return text
