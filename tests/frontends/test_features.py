"""Every feature of tests.frontends.features, for every transport and peer."""

from __future__ import annotations

import pytest

from tests.frontends.features import FEATURES, TRANSPORTS, Feature, pages
from tests.frontends.peers import PEERS, Peer

CASES = [
    pytest.param(
        transport, feature, peer, id=f"{transport}-{feature.check.__name__}-{peer.name}"
    )
    for transport in TRANSPORTS
    for feature in FEATURES
    for peer in PEERS
    if peer.name in feature.peers
]


@pytest.mark.parametrize(("transport", "feature", "peer"), CASES)
def test_a_transport_does_what_the_page_says(
    transport: str, feature: Feature, peer: Peer
) -> None:
    """A feature is on the page only if the check beside its name passes."""
    feature.check(transport, peer)


def test_the_pages_are_what_the_tests_say() -> None:
    """docs/transports.md and docs/hostile-clients.md are printed, not written."""
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, path.name
