"""Certificates for tests: an authority, a server's, a client's; made when asked for."""

from __future__ import annotations

from pathlib import Path

import grpc
import trustme
from google.protobuf import text_format

from tfs.core.call import TlsOptions
from tfs.proto.tensorflow_serving.config import ssl_config_pb2

CLIENT_NAME = "client.example"


class Certificates:
    """One authority and what it signed. Immutable."""

    def __init__(self) -> None:
        self._authority = trustme.CA()
        self._server = self._authority.issue_cert("127.0.0.1", "localhost")
        self._client = self._authority.issue_cert(CLIENT_NAME)

    @property
    def authority(self) -> bytes:
        return self._authority.cert_pem.bytes()

    @property
    def server_key(self) -> bytes:
        return self._server.private_key_pem.bytes()

    @property
    def server_cert(self) -> bytes:
        return b"".join(each.bytes() for each in self._server.cert_chain_pems)

    def tls(self, *, mutual: bool = False) -> TlsOptions:
        """Returns a listener's options."""
        return TlsOptions(
            self.server_key,
            self.server_cert,
            self.authority if mutual else b"",
            mutual,
        )

    def config_text(self, *, mutual: bool = False) -> str:
        """Returns a text SSLConfig."""
        config = ssl_config_pb2.SSLConfig(
            server_key=self.server_key.decode(),
            server_cert=self.server_cert.decode(),
            custom_ca=self.authority.decode() if mutual else "",
            client_verify=mutual,
        )
        return text_format.MessageToString(config)

    def write_config(self, folder: Path, *, mutual: bool = False) -> Path:
        """Writes the text SSLConfig; returns its path."""
        path = folder / "ssl.config"
        path.write_text(self.config_text(mutual=mutual))
        return path

    def client_pem(self) -> tuple[bytes, bytes]:
        """Returns the client's key and certificate chain."""
        chain = b"".join(each.bytes() for each in self._client.cert_chain_pems)
        return self._client.private_key_pem.bytes(), chain

    def client_credentials(self, *, named: bool = False) -> grpc.ChannelCredentials:
        """Returns what trusts the authority, with a client certificate if ``named``."""
        if not named:
            return grpc.ssl_channel_credentials(self.authority)
        return grpc.ssl_channel_credentials(self.authority, *self.client_pem())
