"""Connections of grpcio's clients that are numbers alone."""

from __future__ import annotations

from collections import defaultdict

from tfs.frontends.rpc.grpcio.connections import Traffic


class FakeConnections:
    """What tests say went over connections. Confined to a test.

    Attributes:
        received_bytes: That came, by peer.
        acked_bytes: That clients took, by peer.
        unread_bytes: That came and wait to be read, of each.
        gone: Who was disconnected.
        num_disconnected: How many that are.
    """

    def __init__(self) -> None:
        self.received_bytes: defaultdict[str, int] = defaultdict(int)
        self.acked_bytes: defaultdict[str, int] = defaultdict(int)
        self.unread_bytes = 0
        self.gone: list[str] = []
        self.num_disconnected = 0

    def traffic(self, peer: str) -> Traffic | None:
        if peer in self.gone:
            return None
        return Traffic(
            self.received_bytes[peer], self.acked_bytes[peer], self.unread_bytes
        )

    def address(self, peer: str) -> str:
        return peer

    def disconnect(self, peer: str) -> bool:
        if peer not in self.gone:
            self.gone.append(peer)
            self.num_disconnected += 1
        return True
