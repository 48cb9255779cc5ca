"""TLS and mutual TLS, through both transports."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.certificates import CLIENT_NAME, Certificates
from tests.frontends.features import TRANSPORTS
from tfs.core.call import Call, ListenerOptions, RpcMethod, TlsOptions
from tfs.core.errors import Unavailable
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.tls_context import server_context
from tfs.testing.patience import PATIENCE_S

PATH = "/test.Service/WhoAmI"


@pytest.fixture(params=list(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made() -> Certificates:
    return Certificates()


def who_am_i(call: Call) -> None:
    call.reply(repr(call.peer.identity).encode())


@contextmanager
def served(transport: str, tls: TlsOptions | None) -> Iterator[str]:
    """A transport that answers one method with who the caller is."""
    loop = ServingLoop()
    loop.start()
    made = TRANSPORTS[transport](loop, 1 << 20)
    try:
        (address,) = made.start(
            [ListenerOptions("grpc", "127.0.0.1:0", tls=tls)],
            {PATH: RpcMethod(PATH, who_am_i)},
        )
        yield address
    finally:
        made.close()
        loop.close()


def call(address: str, credentials: grpc.ChannelCredentials | None) -> bytes:
    channel = (
        grpc.insecure_channel(address)
        if credentials is None
        else grpc.secure_channel(address, credentials)
    )
    with channel:
        reply: bytes = channel.unary_unary(PATH, None, None)(b"", timeout=PATIENCE_S)
        return reply


@pytest.mark.parametrize("kind", ["plain text", "another authority"])
def test_others_are_turned_away_from_a_tls_port(
    transport: str, made: Certificates, kind: str
) -> None:
    """Neither plain text nor a client that trusts somebody else gets through."""
    stranger = None if kind == "plain text" else Certificates().client_credentials()
    with (
        served(transport, made.tls()) as address,
        pytest.raises(grpc.RpcError) as caught,
    ):
        call(address, stranger)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_verified_client_is_known_by_its_names(
    transport: str, made: Certificates
) -> None:
    """Mutual TLS: the certificate's names are the peer's identity."""
    with served(transport, made.tls(mutual=True)) as address:
        reply = call(address, made.client_credentials(named=True))
    assert f"'{CLIENT_NAME}'" in reply.decode()


@pytest.mark.parametrize(
    "names",
    [[], [(NameOID.ORGANIZATION_NAME, "Operators")], [(NameOID.COMMON_NAME, "Ann")]],
    ids=["nothing", "organization", "common name"],
)
def test_a_verified_client_without_alternative_names_is_known_all_the_same(
    transport: str, made: Certificates, names: list[tuple[x509.ObjectIdentifier, str]]
) -> None:
    """Who showed a certificate of the authority has an identity, whatever is in it."""
    subject = x509.Name([x509.NameAttribute(*name) for name in names])
    key, certificate = made.client_pem_of(subject)
    credentials = grpc.ssl_channel_credentials(made.authority, key, certificate)
    with served(transport, made.tls(mutual=True)) as address:
        reply = call(address, credentials).decode()
    assert reply != "()"


@pytest.mark.parametrize("named", [False, True], ids=["no certificate", "a stranger's"])
def test_mutual_tls_turns_strangers_away(
    transport: str, made: Certificates, named: bool
) -> None:
    """Without a certificate of the authority nothing is answered."""
    stranger = Certificates()
    credentials = (
        grpc.ssl_channel_credentials(
            made.authority, stranger.server_key, stranger.server_cert
        )
        if named
        else made.client_credentials()
    )
    with (
        served(transport, made.tls(mutual=True)) as address,
        pytest.raises(grpc.RpcError) as caught,
    ):
        call(address, credentials)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_plain_text_has_no_identity(transport: str, made: Certificates) -> None:
    """Without TLS nobody's name is known."""
    with served(transport, None) as address:
        assert call(address, None) == b"()"


def test_bad_certificates_open_nothing(transport: str) -> None:
    """Certificates that cannot be used end the start, not the process."""
    with (
        pytest.raises(Unavailable, match="cannot listen"),
        served(transport, TlsOptions(b"no key", b"no certificate")),
    ):
        pass


def test_old_versions_of_tls_are_refused() -> None:
    """TLS 1.2 is the oldest, with forward secrecy and authenticated ciphers only."""
    context = server_context(Certificates().tls())
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    for cipher in context.get_ciphers():
        assert cipher["aead"]
        assert cipher["protocol"] == "TLSv1.3" or "ECDHE" in cipher["name"]
