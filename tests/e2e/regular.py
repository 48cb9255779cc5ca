"""A good client that calls all the while, whatever others do."""

from __future__ import annotations

import threading

import grpc

from tests.certificates import Certificates
from tests.e2e import hostile
from tfs.testing.patience import PATIENCE_S


class Regular(threading.Thread):
    """A client that calls all the while over one connection, and wants answers.

    Args:
        address: The server's.
        certificates: Of a server that speaks TLS.
        request: What it asks.
    """

    def __init__(
        self,
        address: str,
        certificates: Certificates | None = None,
        request: bytes = hostile.GOOD,
    ) -> None:
        super().__init__(daemon=True)
        self._certificates = certificates
        self._request = request
        self.num_answered = 0
        self.error: grpc.RpcError | None = None
        self._address = address
        self._enough = threading.Event()

    def run(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with (
            grpc.insecure_channel(self._address, options)
            if self._certificates is None
            else grpc.secure_channel(
                self._address, self._certificates.client_credentials(), options
            )
        ) as channel:
            predict = channel.unary_unary(hostile.PREDICT, bytes, bytes)
            while not self._enough.wait(0.01):
                try:
                    predict(self._request, timeout=PATIENCE_S, wait_for_ready=True)
                except grpc.RpcError as error:
                    self.error = error
                    return
                self.num_answered += 1

    def stop(self) -> None:
        self._enough.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.error is None, self.error
        assert self.num_answered
