"""Certificates for tests: an authority, a server's, a client's; made when asked for."""

from __future__ import annotations

from pathlib import Path

import grpc
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
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

    def client_pem_of(self, subject: x509.Name) -> tuple[bytes, bytes]:
        """Returns a client's key and certificate that has no name but its subject."""
        authority = x509.load_pem_x509_certificate(self.authority)
        signing = serialization.load_pem_private_key(
            self._authority.private_key_pem.bytes(), None
        )
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(authority.not_valid_before_utc)
            .not_valid_after(authority.not_valid_after_utc)
            .sign(signing, hashes.SHA256())
        )
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        plain = serialization.NoEncryption()
        return key.private_bytes(pem, form, plain), made.public_bytes(pem)

    def client_credentials(self, *, named: bool = False) -> grpc.ChannelCredentials:
        """Returns what trusts the authority, with a client certificate if ``named``."""
        if not named:
            return grpc.ssl_channel_credentials(self.authority)
        return grpc.ssl_channel_credentials(self.authority, *self.client_pem())
