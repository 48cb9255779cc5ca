"""Certificates from ``--ssl_config_file``: a text ``SSLConfig``, as TensorFlow Serving's.

The fields hold PEM contents, not paths. Everything is tried before a port is opened,
because gRPC says of bad certificates only that it cannot listen.
(TensorFlow Serving: model_servers/server.cc, BuildServerCredentialsFromSSLConfigFile.)
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from google.protobuf import text_format

from tfs.core.call import TlsOptions
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.proto._pool import POOL
from tfs.proto.tensorflow_serving.config import ssl_config_pb2


def read_tls_file(path: str) -> TlsOptions:
    """Reads and tries the certificates.

    Raises:
        FailedPrecondition: The file cannot be read.
        InvalidArgument: It is no SSLConfig, or its certificates cannot be used; says
            which and why, and never shows the key.

    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FailedPrecondition(
            f"--ssl_config_file={path}: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"--ssl_config_file={path}: not text") from error
    config = ssl_config_pb2.SSLConfig()
    try:
        text_format.Parse(text, config, descriptor_pool=POOL)
    except text_format.ParseError as error:
        # The parser quotes the line it stumbles over, which may be of the key.
        where = f"line {error.GetLine()}" if error.GetLine() else "somewhere"
        raise InvalidArgument(
            f"Invalid protobuf file: '{path}': no SSLConfig, at {where}"
        ) from None
    tls = TlsOptions(
        server_key=config.server_key.encode(),
        server_cert=config.server_cert.encode(),
        client_ca=config.custom_ca.encode(),
        verify_client=config.client_verify,
    )
    try:
        check_tls(tls)
    except InvalidArgument as error:
        raise InvalidArgument(f"--ssl_config_file={path}: {error.message}") from error
    return tls


def check_tls(tls: TlsOptions) -> None:
    """Checks that the certificates can be used together.

    Raises:
        InvalidArgument: Naming the field of SSLConfig and what is wrong with it.

    """
    for name, value in (
        ("server_key", tls.server_key),
        ("server_cert", tls.server_cert),
    ):
        if not value:
            raise InvalidArgument(f"{name} is empty; it takes the PEM text itself")
    if tls.verify_client and not tls.client_ca:
        raise InvalidArgument(
            "client_verify needs custom_ca, the PEM text of what signs the clients' "
            "certificates"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        _load(context, tls.server_cert, tls.server_key)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidArgument(
            "server_cert and server_key are not a PEM certificate chain and its "
            f"unencrypted key: {_reason(error)}"
        ) from None
    if tls.client_ca:
        try:
            context.load_verify_locations(cadata=tls.client_ca.decode())
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgument(
                f"custom_ca is no PEM certificate: {_reason(error)}"
            ) from None


def _load(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    # The ssl module reads files only; these are in memory, and nobody else's.
    fds = [_in_memory(cert), _in_memory(key)]
    try:
        cert_path, key_path = [f"/proc/self/fd/{fd}" for fd in fds]
        context.load_cert_chain(cert_path, key_path, _no_password)
    finally:
        for fd in fds:
            os.close(fd)


def _in_memory(content: bytes) -> int:
    fd = os.memfd_create("tls", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    return fd


def _no_password() -> str:
    # Without this an encrypted key would ask for its password on the terminal.
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__
