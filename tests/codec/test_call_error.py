"""tfs.codec.call_error."""

from __future__ import annotations

import grpc
import pytest

from tfs.codec.call_error import read_error


class NotConnected:
    """What grpcio raises when nobody listens."""

    def __init__(self, details: str = "failed to connect to all addresses") -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> None:
        return None


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("serving", "no server answers at serving; add its port: serving:8500 ("),
        ("serving:8500", "no server answers at serving:8500; is it there? ("),
        (
            "unix:/run/tfs.sock",
            "no server answers at unix:/run/tfs.sock; is it there? (",
        ),
        ("dns:///serving", "no server answers at dns:///serving; is it there? ("),
    ],
)
def test_an_address_without_a_port_is_told_to_have_one(
    address: str, words: str
) -> None:
    """grpcio takes port 443 for it, where no model server is expected."""
    assert read_error(NotConnected(), address).message.startswith(words)


@pytest.mark.parametrize(
    "words",
    [
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1",
        "connections to all backends failing; last error: UNKNOWN: ipv4:127.0.0.1:1",
        "errors resolving serving:1: [field:hostname]",
    ],
)
def test_whatever_way_nobody_is_reached_the_address_is_named(words: str) -> None:
    """A balanced client hears of it in other words than one with a single server."""
    assert read_error(NotConnected(words), "serving:1").message == (
        f"no server answers at serving:1; is it there? ({words})"
    )


def test_a_port_without_tls_is_not_called_one_that_is_not_trusted() -> None:
    """grpcio says of both that the handshake failed, but no certificate was shown."""
    words = (
        "failed to connect to all addresses; last error: UNKNOWN: Tls handshake failed "
        "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: OPENSSL_internal:WRONG_VERSION_NUMBER"
    )
    assert read_error(NotConnected(words), "serving:1").message == (
        f"what listens at serving:1 speaks no TLS; call it without credentials ({words})"
    )
