"""The transport keeps what every transport promises."""

from __future__ import annotations

import pytest

from tests.core.conformance.transport import (
    STREAM_CHECKS,
    TRANSPORT_CHECKS,
    TransportCheck,
    over_tls,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.transport import ExpressTransport


def make(loop: ServingLoop) -> ExpressTransport:
    return ExpressTransport(loop)


@pytest.mark.parametrize(
    "check", TRANSPORT_CHECKS + STREAM_CHECKS, ids=lambda check: check.__name__
)
def test_express_is_a_transport(check: TransportCheck) -> None:
    """Each promise of the seam, with a real gRPC client over loopback."""
    check(make)


@pytest.mark.parametrize(
    "check", TRANSPORT_CHECKS + STREAM_CHECKS, ids=lambda check: check.__name__
)
def test_express_is_a_transport_over_tls(check: TransportCheck) -> None:
    """Encryption changes no promise of a transport."""
    check(over_tls(make))
