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

    What it says is in the command's one error, too. To be called before grpc is
    imported; who sets GRPC_VERBOSITY has the last word.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def read_credentials(
    ca: str, key: str | None, cert: str | None
) -> grpc.ChannelCredentials:
    """Returns what trusts ``ca``, and shows ``cert`` where there is one.

    grpc would not say which file is wrong, nor that one is: it tries to connect with
    what it can make of them.

    Raises:
        InvalidArgument: A file cannot be read, or is not of its kind; names it.

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
