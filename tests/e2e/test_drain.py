"""What SIGTERM does to a server under load."""

from __future__ import annotations

import collections
import contextlib
import queue
import signal
import socket
import threading
from pathlib import Path
from typing import Self

import grpc
import numpy as np
import pytest
import torch

import tfs.export
from tests.certificates import Certificates
from tests.e2e.serving import (
    Serving,
    config_text,
    export_busy,
    export_scale,
    free_port,
)
from tests.models.served import Masks
from tfs.client import requests
from tfs.codec.tfrecord import read_records
from tfs.proto.grpc.reflection.v1 import reflection_pb2
from tfs.testing.patience import PATIENCE_S

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


def test_sigterm_under_load_loses_no_accepted_request(tmp_path: Path) -> None:
    """Each request that the server worked on was answered to a client that got it.

    The request log holds what was worked on; the others were told UNAVAILABLE before
    they had reached a handler.
    """
    base_path = tmp_path / "scale"
    export_scale(base_path, 1)
    config = tmp_path / "models.config"
    config.write_text(config_text("scale", base_path, LOGGED.format(tmp_path)))
    with Serving(f"--model_config_file={config}") as server:
        server.wait_for("scale/1 is available")
        load = Load(server.address)
        load.wait_for(300)
        server.process.send_signal(signal.SIGTERM)
        load.join()
        assert server.process.wait(PATIENCE_S) == 0
    num_ok = load.codes.pop(grpc.StatusCode.OK)
    assert set(load.codes) <= {grpc.StatusCode.UNAVAILABLE}
    num_logged = 0
    for path in tmp_path.glob("log*"):
        with path.open("rb") as file:
            num_logged += len(list(read_records(file)))
    assert num_logged == num_ok


@pytest.mark.parametrize("transport", ["grpcio", "express"])
def test_streams_on_which_nobody_waits_hold_up_no_drain(
    scale: Path, tmp_path: Path, transport: str
) -> None:
    """A tool that stays connected for its next question is not what a drain is for.

    The server has a minute and a half to drain, more than this test waits.
    """
    socket_path = tmp_path / "grpc"
    with Serving(
        f"--model_base_path={scale}",
        f"--grpc_transport={transport}",
        f"--grpc_socket_path={socket_path}",
        "--drain_timeout_s=90",
    ) as server:
        streams = [
            _Stream(address, path)
            for address in (server.address, f"unix:{socket_path}")
            for path in (_REFLECTION, _WATCH)
        ]
        assert server.stop() == 0
        for stream in streams:
            assert stream.end() is grpc.StatusCode.OK


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_who_is_reading_an_answer_when_sigterm_comes_gets_all_of_it(
    tmp_path: Path, is_tls: bool
) -> None:
    """A client on a slow path takes its answer while the server drains.

    The HTTP port does not wait for that, but drains meanwhile.
    """
    base_path = tmp_path / "masks"
    tfs.export.save(Masks().eval(), {"x": torch.rand(2, 4)}, str(base_path), 1)
    port = free_port()
    flags = ["--model_name=masks", f"--model_base_path={base_path}"]
    flags.append(f"--rest_api_port={port}")
    certificates = Certificates()
    if is_tls:
        flags.append(f"--ssl_config_file={certificates.write_config(tmp_path)}")
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
    ]
    with Serving(*flags) as server:
        server.wait_for("masks/1 is available")
        with (
            _SlowPath(server.address) as path,
            grpc.secure_channel(
                path.address, certificates.client_credentials(), options
            )
            if is_tls
            else grpc.insecure_channel(path.address, options) as channel,
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as idle,
        ):
            x = np.ones((1, 4), np.float32)
            asked = requests.predict(requests.Target("masks"), {"x": x}).message
            call = channel.unary_unary(requests.PREDICT, bytes, bytes).future(asked)
            assert path.has_begun.wait(PATIENCE_S)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("draining")
            assert idle.recv(1) == b""
            path.goes_on.set()
            assert len(call.result(PATIENCE_S)) > 10 << 20
        assert server.process.wait(PATIENCE_S) == 0


_PIECE_S = 0.01  # 10 MB take 1.6 s then, which a server would not wait by chance


class _SlowPath:
    """A slow proxy for one client, which holds up the server's bytes after the first."""

    def __init__(self, target: str) -> None:
        self.has_begun, self.goes_on = threading.Event(), threading.Event()
        self._is_over = threading.Event()
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets = [self._listening]
        self._threads = [threading.Thread(target=self._open, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.goes_on.set()
        self._is_over.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        for each in self._sockets:
            each.close()

    def _open(self) -> None:
        client, _ = self._listening.accept()
        server = socket.socket()
        # With much room on the path, all of the answer would be on it at once.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        server.connect(self._target)
        self._sockets += client, server
        thread = threading.Thread(target=self._pass_on, args=(client, server))
        self._threads.append(thread)
        thread.start()
        self._pass_on(server, client, 1 << 20)

    def _pass_on(
        self, source: socket.socket, target: socket.socket, hold_up_after: int = -1
    ) -> None:
        num_bytes = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
                num_bytes += len(data)
                if 0 < hold_up_after < num_bytes:
                    self.has_begun.set()
                    self.goes_on.wait(PATIENCE_S)
                    self._is_over.wait(_PIECE_S)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def test_a_call_that_computes_on_is_no_crash_of_the_server(tmp_path: Path) -> None:
    """The exit code says that the drain was not complete, and there is no core."""
    base_path = tmp_path / "busy"
    export_busy(base_path)
    with Serving(
        "--model_name=busy", f"--model_base_path={base_path}", "--drain_timeout_s=0"
    ) as server:
        server.wait_for("busy/1 is available")
        target, x = requests.Target("busy"), np.full((1, 2), 2, np.float32)
        with grpc.insecure_channel(server.address) as channel:
            predict = channel.unary_unary(requests.PREDICT, bytes, bytes)
            call = predict.future(requests.predict(target, {"x": x}).message)
            server.wait_for("^busy")
            assert server.stop() == 1
            assert call.code() is grpc.StatusCode.UNAVAILABLE


_REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
_WATCH = "/grpc.health.v1.Health/Watch"


class _Stream:
    """A stream that was answered once, and whose client would go on asking."""

    def __init__(self, address: str, path: str) -> None:
        self._asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        self._asked.put(b"" if path == _WATCH else question.SerializeToString())
        if path == _WATCH:
            self._asked.put(None)
        self._channel = grpc.insecure_channel(address)
        ask = self._channel.stream_stream(path, bytes, bytes)
        self._call = ask(iter(self._asked.get, None))
        next(iter(self._call))

    def end(self) -> grpc.StatusCode:
        """Reads what is left; returns how the server ended the stream."""
        for _ in self._call:
            pass
        self._asked.put(None)
        self._channel.close()
        code: grpc.StatusCode = self._call.code()
        return code
