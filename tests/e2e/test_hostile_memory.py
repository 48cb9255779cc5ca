"""Crowds of hostile clients take no more memory than the budget, and others are served.

A real server, raw sockets, and what the kernel says that the server has resident.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil
import pytest
import torch

import tfs.export
from tests.certificates import Certificates
from tests.e2e import hostile
from tests.e2e.regular import Regular
from tests.e2e.serving import Serving
from tests.frontends.express.wire import (
    HELLO,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    prefixed,
)
from tests.frontends.tls_client import trusting
from tests.models.served import Masks, Scale
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import FrameType, Setting
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.testing.patience import PATIENCE_S

_BUDGET_BYTES: Final = 96 << 20
_NO_PROGRESS_S: Final = 2.0  # ten for a server as it is started
_LONGEST_S: Final = 3 * PATIENCE_S  # who reads nothing goes three at a time
_RAN: Final = re.compile(r"event=slow_round_stack .* ran_s=([\d.]+)")
# The promise is 0.1 s. Where others share the cores' caches, all takes several times as
# long.
_LONGEST_ROUND_S: Final = 0.4
_NOTHING = HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})
_REFLECTION: Final = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
_ALL = HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: (1 << 31) - 1})
_ALL += frames.window_update(0, (1 << 31) - (1 << 16))


def _model(tmp_path: Path) -> tuple[str, ...]:
    """Returns the flags of a server of two models.

    The answers of one are its requests, those of the other 10 MB whatever is asked.
    """
    example = {"x": torch.zeros(2, 4)}
    double, masks = tmp_path / "double", tmp_path / "masks"
    tfs.export.save(Scale(2.0).eval(), example, str(double), 1, dynamic={"x": [1]})
    tfs.export.save(Masks().eval(), example, str(masks), 1)
    config = tmp_path / "models.config"
    config.write_text(
        "model_config_list {"
        f' config {{ name: "double" base_path: "{double}" }}'
        f' config {{ name: "masks" base_path: "{masks}" }}'
        "}"
    )
    return (f"--model_config_file={config}",)


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    return Certificates()


def _request(num_bytes: int, model: str = "double") -> bytes:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in (1, num_bytes // 4):
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = bytes(num_bytes)
    return prefixed(request.SerializeToString())


class Caller:
    """One connection that sends requests as the server grants room. Never blocks.

    Attributes:
        socket: To be selected on.
        is_closed: By the server.
        num_read_bytes: Of answers.
        num_answered: Whole answers.
    """

    def __init__(
        self,
        address: str,
        hello: bytes,
        requests: list[bytes],
        authority: bytes | None = None,
        is_finished: bool = True,
        *,
        path: str = hostile.PREDICT,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self.socket.connect((host, int(port)))
        if authority is not None:
            context = ssl.create_default_context(cadata=authority.decode())
            context.set_alpn_protocols(["h2"])
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.socket.setblocking(False)
        self.is_closed = False
        self.num_read_bytes = 0
        self.num_answered = 0
        self._window = frames.DEFAULT_WINDOW
        self._initial_window = frames.DEFAULT_WINDOW
        self._stream_window = 0  # of the request that is sent
        self._out = bytearray(hello)
        self._received = b""
        self._next_id = 1
        self._requests = [memoryview(each) for each in reversed(requests)]
        self._last_flags = frames.END_STREAM if is_finished else 0
        self._block = literal_block(grpc_headers(*headers, path=path))
        self._left = memoryview(b"")

    @property
    def has_sent_all(self) -> bool:
        return not (self._requests or self._left or self._out)

    def go_on(self, reads: bool) -> None:
        try:
            if reads:
                with contextlib.suppress(*hostile.NOT_NOW):
                    self._read()
            self._fill()
            while self._out:
                del self._out[: self.socket.send(self._out)]
                self._fill()
        except hostile.NOT_NOW:
            return
        except OSError:
            self.is_closed = True

    def _fill(self) -> None:
        if not self._left and self._requests and not self._out:
            self._left = self._requests.pop()
            self._out += headers_frame(self._next_id, self._block)
            self._next_id += 2
            self._stream_window = self._initial_window
        while self._left and len(self._out) < 100_000:
            room = min(16_384, self._window, self._stream_window)
            if room <= 0:
                return
            part = self._left[:room]
            self._left = self._left[room:]
            self._window -= len(part)
            self._stream_window -= len(part)
            flags = 0 if self._left else self._last_flags
            self._out += data_frame(self._next_id - 2, bytes(part), flags)

    def _read(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            self.is_closed = True
        self.num_read_bytes += len(data)
        data = self._received + data
        index = 0
        while len(data) - index >= frames.HEAD_SIZE:
            word, flags, stream_id = frames.unpack_head(data, index)
            end = index + frames.HEAD_SIZE + (word >> 8)
            if end > len(data):
                break
            kind = word & 0xFF
            if kind == FrameType.WINDOW_UPDATE:
                num_bytes = int.from_bytes(data[end - 4 : end], "big")
                if not stream_id:
                    self._window += num_bytes
                elif stream_id == self._next_id - 2:
                    self._stream_window += num_bytes
            elif kind == FrameType.SETTINGS and not flags & frames.ACK:
                self._take_settings(data[index + frames.HEAD_SIZE : end])
            elif kind == FrameType.HEADERS and flags & frames.END_STREAM:
                self.num_answered += 1
            index = end
        self._received = data[index:]

    def _take_settings(self, payload: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", payload):
            if number == Setting.INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial_window
                self._initial_window = value
        self._out += frames.frame(FrameType.SETTINGS, frames.ACK, 0, b"")


def _drive(
    callers: list[Caller], is_over: Callable[[], bool], reads: Callable[[Caller], bool]
) -> None:
    """Lets them go on until ``is_over``, or for a bounded time."""
    end_s = time.monotonic() + _LONGEST_S
    with selectors.DefaultSelector() as selector:
        for caller in callers:
            selector.register(caller.socket, selectors.EVENT_READ, caller)
        while not is_over() and time.monotonic() < end_s:
            selector.select(0.02)
            for caller in callers:
                if not caller.is_closed:
                    caller.go_on(reads(caller))
        assert is_over(), "the server was silent"


class Watch:
    """Looks 50 times a second at what a process has resident.

    Attributes:
        first_bytes: When it began to.
        peak_bytes: The most since.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.first_bytes = self.peak_bytes = self.resident_bytes
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def resident_bytes(self) -> int:
        return int(self._process.memory_info().rss)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._enough.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, self.resident_bytes)


def _over_after(duration_s: float) -> Callable[[], bool]:
    end_s = time.monotonic() + duration_s
    return lambda: time.monotonic() > end_s


def _always(caller: Caller) -> bool:
    return True


def _until_sent(caller: Caller) -> bool:
    return not caller.has_sent_all


def _ask(
    serving: Serving, request: bytes, num_callers: int, authority: bytes | None
) -> None:
    """Has a request of each of some good clients answered, at the same time."""
    address = serving.address
    crowd = [Caller(address, _ALL, [request], authority) for _ in range(num_callers)]
    _drive(crowd, lambda: all(each.num_answered for each in crowd), _always)
    for caller in crowd:
        caller.socket.close()


@dataclass(frozen=True, slots=True)
class Crowd:
    """Clients that all do the same.

    Attributes:
        num_clients: How many they are.
        requests: What each of them sends.
        hello: How they begin.
        is_finished: Whether their last request is whole.
        reads: Whether they read once they have sent all.
        headers: Headers of their requests.
        is_tls: Whether it is tried over TLS.
        is_outlasted: Whether a long request is asked beside it, which takes the seconds
            in which a crowd makes no progress.

    """

    num_clients: int
    requests: Callable[[], list[bytes]]
    hello: bytes = _ALL
    is_finished: bool = True
    reads: Callable[[Caller], bool] = _always
    headers: tuple[tuple[str, str], ...] = ()
    is_tls: bool = False
    is_outlasted: bool = False


def _bomb(num_bytes: int) -> bytes:
    """Returns a message of a thousandth of the length that it is unpacked."""
    deflater = zlib.compressobj(9, wbits=31)
    parts = [deflater.compress(bytes(1 << 20)) for _ in range(num_bytes >> 20)]
    body = b"".join((*parts, deflater.flush()))
    return struct.pack(">BI", 1, len(body)) + body


def _fill(num_elements: int) -> bytes:
    """Returns a request of forty bytes that stands for so many elements."""
    fill = predict_pb2.PredictRequest()
    fill.model_spec.name = "double"
    tensor = fill.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in (1, num_elements):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.append(1.5)
    return prefixed(fill.SerializeToString())


_LARGE: Final = 10 << 20
_CROWDS: Final = {
    "opens no window for answers of 10 MB": Crowd(
        30, lambda: [_request(_LARGE)] * 3, _NOTHING
    ),
    "opens no window for answers of 10 MB, over TLS": Crowd(
        30, lambda: [_request(_LARGE)] * 3, _NOTHING, is_tls=True
    ),
    "reads no answers of 10 MB": Crowd(
        30, lambda: [_request(_LARGE)] * 3, reads=_until_sent
    ),
    "opens no window for 250 answers of 48 KB": Crowd(
        30, lambda: [_request(48_000)] * 250, _NOTHING
    ),
    "sends all but the end of requests of 10 MB": Crowd(
        30, lambda: [_request(_LARGE)[:-1]] * 3, is_finished=False, is_outlasted=True
    ),
    "sends 48 KB of 10 MB, as one of a thousand": Crowd(
        1000, lambda: [_request(_LARGE)[:48_000]], is_finished=False
    ),
    "unpacks 256 MB from 256 KB": Crowd(
        12, lambda: [_bomb(256 << 20)] * 4, headers=(("grpc-encoding", "gzip"),)
    ),
    "asks in 40 bytes for answers of 10 MB": Crowd(
        30, lambda: [_fill(_LARGE // 4)] * 20, _NOTHING
    ),
    "asks in 16 bytes for answers of 10 MB": Crowd(
        30, lambda: [_request(16, "masks")] * 20, _NOTHING
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, int]]:
    """A server for all crowds in plain text, and what it has resident while idle."""
    flags = _model(tmp_path_factory.mktemp("plain"))
    flags = (*flags, f"--max_receive_bytes={_BUDGET_BYTES}")
    with Serving(*flags, no_progress_timeout_s=_NO_PROGRESS_S) as serving:
        yield serving, _idle_bytes(serving, None)


def _idle_bytes(serving: Serving, authority: bytes | None) -> int:
    serving.wait_for("is available")
    serving.wait_for("is available")
    _ask(serving, _request(16), 1, authority)
    return int(psutil.Process(serving.process.pid).memory_info().rss)


@pytest.mark.parametrize("name", [name for name in _CROWDS if not _CROWDS[name].is_tls])
def test_a_crowd_takes_no_more_than_the_budget(
    plain: tuple[Serving, int], name: str
) -> None:
    """Resident memory grows by --max_receive_bytes and 64 MB at most.

    Small calls are answered meanwhile, and long ones once the crowd made no progress, or
    has gone.
    """
    _besiege(*plain, _CROWDS[name])


def test_a_crowd_over_tls_takes_no_more_than_the_budget(
    tmp_path: Path, certificates: Certificates
) -> None:
    """Encryption changes nothing of that."""
    flags = (
        *_model(tmp_path),
        f"--ssl_config_file={certificates.write_config(tmp_path)}",
    )
    authority = certificates.authority
    with Serving(*flags, f"--max_receive_bytes={_BUDGET_BYTES}") as serving:
        idle_bytes = _idle_bytes(serving, authority)
        for crowd in _CROWDS.values():
            if crowd.is_tls:
                _besiege(serving, idle_bytes, crowd, authority)


def _besiege(
    serving: Serving, idle_bytes: int, crowd: Crowd, authority: bytes | None = None
) -> None:
    small, large = _request(16), _request(_LARGE)
    num_lines = len(serving.lines)
    requests = crowd.requests()
    with Watch(serving.process.pid) as watch:
        callers = [
            Caller(
                serving.address,
                crowd.hello,
                requests,
                authority,
                crowd.is_finished,
                headers=crowd.headers,
            )
            for _ in range(crowd.num_clients)
        ]
        for _ in range(2):
            _drive(callers, _over_after(0.7), crowd.reads)
            _ask(serving, small, 1, authority)
        if crowd.is_outlasted:
            _ask(serving, large, 1, authority)
        for caller in callers:
            caller.socket.close()
        _ask(serving, large, 1, authority)
    assert watch.peak_bytes - idle_bytes < _BUDGET_BYTES + (64 << 20)
    ran_s = [
        float(found[1])
        for line in serving.lines[num_lines:]
        if (found := _RAN.search(line))
    ]
    assert max(ran_s, default=0.0) < _LONGEST_ROUND_S


class Flooder:
    """Sends the same without end over one connection, and comes back when it is closed."""

    def __init__(
        self,
        address: str,
        piece: Callable[[int], bytes],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._piece = piece
        self._tls = tls
        self._connect()

    def _connect(self) -> None:
        self.socket = socket.create_connection((self._host, int(self._port)))
        if self._tls is not None:
            self.socket = self._tls.wrap_socket(self.socket, server_hostname=self._host)
        self.socket.setblocking(False)
        self._out, self._index = HELLO, 0

    def go_on(self) -> None:
        """Sends as much as the server takes at once."""
        try:
            while True:
                if not self._out:
                    self._out = self._piece(self._index)
                    self._index += 1
                self._out = self._out[self.socket.send(self._out) :]
        except hostile.NOT_NOW:
            return
        except OSError:
            self.socket.close()
            self._connect()


def _more_headers(index: int) -> bytes:
    if index == 0:
        return hostile.head(1, flags=0)
    field = b"\x00\x04k123\x5a" + bytes(90)
    return 4 * frames.frame(FrameType.CONTINUATION, 0, 1, field * 165)


def _resets(index: int) -> bytes:
    return b"".join(
        hostile.call(each, bytes(8000))
        + frames.rst_stream(each, frames.ErrorCode.CANCEL)
        for each in range(20 * index + 1, 20 * index + 21, 2)
    )


@pytest.mark.parametrize("piece", [_more_headers, _resets], ids=["headers", "resets"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_a_crowd_that_floods_and_comes_back_takes_no_more(
    tmp_path: Path,
    piece: Callable[[int], bytes],
    certificates: Certificates,
    is_tls: bool,
) -> None:
    """Thirty clients, disconnected again and again; a good one has all calls answered."""
    flags = list(_model(tmp_path))
    if is_tls:
        flags.append(f"--ssl_config_file={certificates.write_config(tmp_path)}")
    tls = trusting(certificates) if is_tls else None
    with Serving(*flags, f"--max_receive_bytes={_BUDGET_BYTES}") as serving:
        serving.wait_for("is available")
        serving.wait_for("is available")
        regular = Regular(
            serving.address, certificates if is_tls else None, _request(16)[5:]
        )
        regular.start()
        over = _over_after(1.5)
        with Watch(serving.process.pid) as watch:
            crowd = [Flooder(serving.address, piece, tls) for _ in range(30)]
            while not over():
                for each in crowd:
                    each.go_on()
        for each in crowd:
            each.socket.close()
        regular.stop()
        assert regular.error is None
        assert watch.peak_bytes - watch.first_bytes < _BUDGET_BYTES + (64 << 20)
