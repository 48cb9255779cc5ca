"""What SIGTERM does to a server under load."""

from __future__ import annotations

import collections
import signal
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.e2e.serving import PATIENCE_S, Serving, config_text, export_scale
from tfs.client import requests
from tfs.codec.tfrecord import read_records

pytestmark = pytest.mark.timeout(120)

NUM_THREADS = 4
X = np.ones((1, 2), np.float32)
LOGGED = (
    'logging_config {{ log_collector_config {{ filename_prefix: "{}/log" }} '
    "sampling_config {{ sampling_rate: 1 }} }}"
)


class Load:
    """Threads that call as fast as they are answered, until they are told to go."""

    def __init__(self, address: str) -> None:
        self.codes: collections.Counter[grpc.StatusCode] = collections.Counter()
        self._address = address
        self._message = requests.predict(requests.Target("scale"), {"x": X}).message
        self._answered = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._work, daemon=True) for _ in range(NUM_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, num_answered: int) -> None:
        """Blocks until so many calls were answered."""
        for _ in range(num_answered):
            assert self._answered.acquire(timeout=PATIENCE_S)

    def join(self) -> None:
        """Blocks until every thread has been sent away."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _work(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._address, options) as channel:
            predict = channel.unary_unary(requests.PREDICT, bytes, bytes)
            code = grpc.StatusCode.OK
            while code is grpc.StatusCode.OK:
                try:
                    predict(self._message, timeout=PATIENCE_S)
                except grpc.RpcError as error:
                    code = error.code()
                self.codes[code] += 1
                self._answered.release()


@pytest.mark.parametrize("transport", ["grpcio", "express"])
def test_sigterm_under_load_loses_no_accepted_request(
    tmp_path: Path, transport: str
) -> None:
    """Each request that the server worked on was answered to a client that got it.

    The request log holds what was worked on; the others were told UNAVAILABLE, or by
    grpcio CANCELLED, before they had reached a handler.
    """
    base_path = tmp_path / "scale"
    export_scale(base_path, 1)
    config = tmp_path / "models.config"
    config.write_text(config_text("scale", base_path, LOGGED.format(tmp_path)))
    with Serving(
        f"--model_config_file={config}", f"--grpc_transport={transport}"
    ) as server:
        server.wait_for("scale/1 is available")
        load = Load(server.address)
        load.wait_for(300)
        server.process.send_signal(signal.SIGTERM)
        load.join()
        assert server.process.wait(PATIENCE_S) == 0
    sent_away = {grpc.StatusCode.UNAVAILABLE}
    if transport == "grpcio":
        sent_away.add(grpc.StatusCode.CANCELLED)
    num_ok = load.codes.pop(grpc.StatusCode.OK)
    assert set(load.codes) <= sent_away
    num_logged = 0
    for path in tmp_path.glob("log*"):
        with path.open("rb") as file:
            num_logged += len(list(read_records(file)))
    assert num_logged == num_ok
