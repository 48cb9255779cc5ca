"""Clients that ask and read no answers, or never finish asking, cost little memory.

A real server, raw sockets, and what the kernel says that the server has resident.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import grpc
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
from tests.runtime.process_host import until
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.frames import FrameType, Setting
from tfs.proto.grpc.reflection.v1 import reflection_pb2
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.testing.patience import PATIENCE_S

_MOST_GROWTH: Final = 1.2
_LEFT_BYTES: Final = 8 << 20  # of a server that did nothing before; it trims at 16 MB
_SLOW_BYTES_PER_S: Final = 3 << 20
_LONGEST_S: Final = 3 * PATIENCE_S  # who reads nothing goes three at a time
_SMALL_S: Final = 3.0  # a small call takes milliseconds, and behind others ten seconds
_NOTHING = HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})
_REFLECTION: Final = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
_ALL = HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: (1 << 31) - 1})
_ALL += frames.window_update(0, (1 << 31) - (1 << 16))


def _model(tmp_path: Path) -> tuple[str, ...]:
    """Returns the flags of a server of one model, whose answers are its requests."""
    tfs.export.save(
        Scale(2.0).eval(),
        {"x": torch.zeros(2, 4)},
        str(tmp_path / "double"),
        1,
        dynamic={"x": [1]},
    )
    return (
        "--model_name=double",
        f"--model_base_path={tmp_path / 'double'}",
    )


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(*_model(tmp_path)) as server:
        server.wait_for("double/1 is available")
        yield server


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


def _besiege(
    serving: Serving,
    num_clients: int,
    num_bytes: int,
    *,
    hold_s: float,
    num_good: int,
    authority: bytes | None = None,
) -> None:
    """Asserts that crowds which take nothing leave memory and others in peace.

    They may add no more than a fifth to what some good clients take at a time.
    """
    large = _request(num_bytes)
    pid = serving.process.pid
    _ask(serving, _request(16), 1, authority)
    at_first_bytes = Watch(pid).resident_bytes

    def wait_until_returned() -> None:
        until(
            lambda: Watch(pid).resident_bytes < at_first_bytes + _LEFT_BYTES,
            "the memory of large messages to be returned",
        )

    with Watch(pid) as good:
        _ask(serving, large, num_good, authority)
    for hello, reads in ((_NOTHING, _always), (_ALL, _until_sent)):
        wait_until_returned()
        with Watch(pid) as bad:
            crowd = [
                Caller(serving.address, hello, [large] * 3, authority)
                for _ in range(num_clients)
            ]
            _drive(crowd, _over_after(hold_s), reads)
            _ask(serving, _request(16), 1, authority)
            _ask(serving, large, 1, authority)
            for caller in crowd:
                caller.socket.close()
        print(
            f"resident at first {at_first_bytes >> 20} MiB, with good clients "
            f"{good.peak_bytes >> 20}, with bad ones {bad.peak_bytes >> 20}"
        )
        assert bad.peak_bytes < _MOST_GROWTH * good.peak_bytes
    wait_until_returned()


def test_answers_that_nobody_reads_take_little_memory(serving: Serving) -> None:
    """Twelve clients, 10 MB each time: within 1.2 of what two take that read them.

    Whether windows or sockets are what they do not open. Others are answered, with large
    answers as well.
    """
    _besiege(serving, 12, 10 << 20, hold_s=2.0, num_good=2)


def test_requests_that_nobody_finishes_take_little_memory(serving: Serving) -> None:
    """Twenty clients that send all of 10 MB but a byte: as much as four that call.

    Whoever calls meanwhile is answered, with small and large answers.
    """
    large = _request(10 << 20)
    pid = serving.process.pid
    with Watch(pid) as good:
        _ask(serving, large, 4, None)
    with Watch(pid) as bad:
        crowd = [
            Caller(serving.address, _ALL, [large[:-1]] * 3, is_finished=False)
            for _ in range(20)
        ]
        _drive(crowd, _over_after(2.0), _always)
        _ask(serving, _request(16), 4, None)
        _ask(serving, large, 1, None)
        for caller in crowd:
            caller.socket.close()
    print(f"with good clients {good.peak_bytes >> 20}, with bad {bad.peak_bytes >> 20}")
    assert bad.peak_bytes < _MOST_GROWTH * good.peak_bytes


def test_what_a_crowd_begins_takes_what_arrived_of_it(serving: Serving) -> None:
    """Three hundred clients with 48 KB of 10 MB each: a quarter more, with all they take."""
    begun = _request(10 << 20)[:48_000]
    _ask(serving, _request(16), 4, None)
    with Watch(serving.process.pid) as bad:
        crowd = [
            Caller(serving.address, _ALL, [begun], is_finished=False)
            for _ in range(300)
        ]
        _drive(crowd, lambda: all(each.has_sent_all for each in crowd), _always)
        _drive(crowd, _over_after(1.0), _always)
        for caller in crowd:
            caller.socket.close()
    grown_bytes = bad.peak_bytes - bad.first_bytes
    print(f"grew by {grown_bytes >> 10} KiB")
    assert grown_bytes < 300 * 60_000 + (4 << 20)


def _bomb(num_bytes: int) -> bytes:
    """Returns a message of a thousandth of the length that it is unpacked."""
    deflater = zlib.compressobj(9, wbits=31)
    parts = [deflater.compress(bytes(1 << 20)) for _ in range(num_bytes >> 20)]
    body = b"".join((*parts, deflater.flush()))
    return struct.pack(">BI", 1, len(body)) + body


@pytest.mark.parametrize("path", [hostile.PREDICT, _REFLECTION])
def test_requests_that_unpack_to_gigabytes_take_little_memory(
    serving: Serving, path: str
) -> None:
    """Twelve clients, four times 256 MB each: refused, and as much as four that call."""
    large, bomb = _request(10 << 20), _bomb(256 << 20)
    pid = serving.process.pid
    with Watch(pid) as good:
        _ask(serving, large, 4, None)

    def are_answered() -> bool:
        return all(each.num_answered == 4 or each.is_closed for each in crowd)

    with Watch(pid) as bad:
        crowd = [
            Caller(
                serving.address,
                _ALL,
                [bomb] * 4,
                path=path,
                headers=(("grpc-encoding", "gzip"),),
            )
            for _ in range(12)
        ]
        _drive(crowd, are_answered, _always)
        _ask(serving, _request(16), 1, None)
        for caller in crowd:
            caller.socket.close()
    print(f"with good clients {good.peak_bytes >> 20}, with bad {bad.peak_bytes >> 20}")
    assert bad.peak_bytes < _MOST_GROWTH * good.peak_bytes


def test_first_long_answers_that_nobody_reads_take_little_memory(
    tmp_path: Path,
) -> None:
    """Twelve clients that ask at once, before the model ever answered: as much as two.

    Its signature says how long its answers are. Whoever calls later is answered.
    """
    tfs.export.save(
        Masks().eval(), {"x": torch.zeros(2, 4)}, str(tmp_path / "masks"), 1
    )
    flags = (
        *_model(tmp_path)[2:],
        f"--model_base_path={tmp_path / 'masks'}",
        "--model_name=masks",
    )
    with Serving(*flags) as serving:
        serving.wait_for("masks/1 is available")
        small = _request(16, "masks")
        with Watch(serving.process.pid) as bad:
            crowd = [Caller(serving.address, _NOTHING, [small]) for _ in range(12)]
            _drive(crowd, _over_after(2.0), _always)
            for caller in crowd:
                caller.socket.close()
            _ask(serving, small, 1, None)
        print(f"grew by {bad.peak_bytes - bad.first_bytes >> 20} MiB")
        assert bad.peak_bytes - bad.first_bytes < 80 << 20


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


@pytest.mark.parametrize("num_elements", [1 << 22, 1 << 18])
def test_requests_that_stand_for_megabytes_take_little_memory(
    serving: Serving, num_elements: int
) -> None:
    """Thirty clients ask in forty bytes, and read nothing: as much as two that call.

    Before the model ever gave a long answer, and after that. Others are answered.
    """
    _ask(serving, _request(16), 1, None)
    before = Watch(serving.process.pid)
    with before as bad:
        crowd = [
            Caller(serving.address, _NOTHING, [_fill(num_elements)] * 3)
            for _ in range(30)
        ]
        _drive(crowd, _over_after(3.0), _always)
        _ask(serving, _request(16), 1, None)
        _ask(serving, _fill(num_elements), 1, None)
        for caller in crowd:
            caller.socket.close()
    with Watch(serving.process.pid) as good:
        _ask(serving, _request(10 << 20), 2, None)
    print(
        f"resident at first {before.first_bytes >> 20} MiB, with good clients "
        f"{good.peak_bytes >> 20}, with bad ones {bad.peak_bytes >> 20}"
    )
    assert bad.peak_bytes < _MOST_GROWTH * good.peak_bytes


def test_small_requests_do_not_wait_for_long_answers_that_others_do_not_read(
    serving: Serving,
) -> None:
    """Of the same model: twelve clients ask for 16 MB in 40 bytes and read nothing."""
    asked = _fill(1 << 22)
    small = _request(16)[len(prefixed(b"")) :]
    with grpc.insecure_channel(serving.address) as channel:
        ask = channel.unary_unary(hostile.PREDICT, bytes, bytes)
        ask(small, timeout=PATIENCE_S)
        crowd = [Caller(serving.address, _NOTHING, [asked] * 3) for _ in range(12)]
        _drive(crowd, _over_after(1.0), _always)
        for _ in range(20):
            ask(small, timeout=_SMALL_S)
        for caller in crowd:
            caller.socket.close()


def test_long_messages_of_streams_take_little_memory(serving: Serving) -> None:
    """Forty clients that ask reflection with 10 MB: as much as four that call.

    Half of them with their first message, half with a later one.
    """
    large = _request(10 << 20)
    pid = serving.process.pid
    with Watch(pid) as good:
        _ask(serving, large, 4, None)

    def are_answered() -> bool:
        return all(each.num_answered or each.is_closed for each in crowd)

    with Watch(pid) as bad:
        crowd = [
            Caller(serving.address, _ALL, [first + large] * 3, path=_REFLECTION)
            for first in (b"", prefixed(b"")) * 20
        ]
        _drive(crowd, are_answered, _always)
        _ask(serving, _request(16), 1, None)
        for caller in crowd:
            caller.socket.close()
    print(f"with good clients {good.peak_bytes >> 20}, with bad {bad.peak_bytes >> 20}")
    assert bad.peak_bytes < _MOST_GROWTH * good.peak_bytes


@pytest.mark.parametrize(
    ("num_clients", "num_questions", "num_good"), [(30, 20, 4), (60, 100, 2)]
)
def test_answers_of_streams_that_nobody_reads_take_little_memory(
    serving: Serving, num_clients: int, num_questions: int, num_good: int
) -> None:
    """Clients with 64 streams each, full of questions: as much as a few good calls."""
    question = reflection_pb2.ServerReflectionRequest(
        file_containing_symbol="tensorflow.serving.PredictionService"
    )
    questions = prefixed(question.SerializeToString()) * num_questions
    pid = serving.process.pid
    with Watch(pid) as good:
        _ask(serving, _request(10 << 20), num_good, None)
    with Watch(pid) as bad:
        crowd = [
            Caller(serving.address, _NOTHING, [questions] * 64, path=_REFLECTION)
            for _ in range(num_clients)
        ]
        _drive(crowd, _over_after(3.0), _always)
        _ask(serving, _request(16), 1, None)
        for caller in crowd:
            caller.socket.close()
    print(f"with good clients {good.peak_bytes >> 20}, with bad {bad.peak_bytes >> 20}")
    assert bad.peak_bytes < _MOST_GROWTH * good.peak_bytes


def test_answers_that_nobody_reads_take_little_memory_over_tls(
    tmp_path: Path,
) -> None:
    """What is encrypted and waits is bounded as well."""
    certificates = Certificates()
    config = certificates.write_config(tmp_path)
    flags = (*_model(tmp_path), f"--ssl_config_file={config}")
    with Serving(*flags) as serving:
        serving.wait_for("double/1 is available")
        _besiege(
            serving,
            12,
            10 << 20,
            hold_s=2.0,
            num_good=2,
            authority=certificates.authority,
        )


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
def test_floods_take_little_memory(
    serving: Serving, piece: Callable[[int], bytes]
) -> None:
    """Thirty clients flood, and come back when they are disconnected: as much as four call."""
    _flood(serving, piece, None)


@pytest.mark.parametrize("piece", [_more_headers, _resets], ids=["headers", "resets"])
def test_floods_take_little_memory_over_tls(
    tmp_path: Path, piece: Callable[[int], bytes]
) -> None:
    """Over TLS as well, and no call of a good client is cut off meanwhile."""
    certificates = Certificates()
    config = certificates.write_config(tmp_path)
    flags = (*_model(tmp_path), f"--ssl_config_file={config}")
    with Serving(*flags) as serving:
        serving.wait_for("double/1 is available")
        small = _request(16)[5:]
        regular = Regular(serving.address, certificates, small)
        regular.start()
        _flood(serving, piece, certificates)
        regular.stop()


def _flood(
    serving: Serving, piece: Callable[[int], bytes], certificates: Certificates | None
) -> None:
    """Asserts that thirty clients that flood take as much memory as four that call."""
    authority = None if certificates is None else certificates.authority
    tls = None if certificates is None else trusting(certificates)
    pid = serving.process.pid
    with Watch(pid) as good:
        _ask(serving, _request(10 << 20), 4, authority)
    over = _over_after(4.0)
    with Watch(pid) as bad:
        crowd = [Flooder(serving.address, piece, tls) for _ in range(30)]
        while not over():
            for each in crowd:
                each.go_on()
        _ask(serving, _request(16), 1, authority)
        for each in crowd:
            each.socket.close()
    print(f"with good clients {good.peak_bytes >> 20}, with bad {bad.peak_bytes >> 20}")
    assert bad.peak_bytes < _MOST_GROWTH * good.peak_bytes


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_mib", [2, 10, 30])
def test_crowds_that_read_nothing_take_little_memory(
    serving: Serving, num_mib: int
) -> None:
    """Crowds that read nothing for a minute take no more than a few good readers."""
    _besiege(serving, 60, num_mib << 20, hold_s=30.0, num_good=4)


def test_slow_readers_get_all_of_their_answers(serving: Serving) -> None:
    """Twenty clients that take 10 MB at a few MB a second, all at the same time."""
    large = _request(10 << 20)
    crowd = [Caller(serving.address, _ALL, [large]) for _ in range(20)]
    begun_s: dict[Caller, float] = {}

    def reads(caller: Caller) -> bool:
        if not caller.has_sent_all:
            return True
        now_s = time.monotonic()
        took_s = now_s - begun_s.setdefault(caller, now_s)
        return caller.num_read_bytes <= took_s * _SLOW_BYTES_PER_S

    _drive(crowd, lambda: all(each.num_answered for each in crowd), reads)
    assert not any(each.is_closed for each in crowd)
    assert all(each.num_read_bytes > 10 << 20 for each in crowd)
    for caller in crowd:
        caller.socket.close()
