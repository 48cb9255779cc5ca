"""Predict over express from clients that reset, vanish, dawdle and break rules.

The real transport, handler, gate, batch queues and serving map on a stepped loop; only
the model is a double, which ends its batches late.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from managers.serving_map import retire
from tests.frontends.express.rig import RawClient
from tests.frontends.express.wire import (
    HELLO,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    prefixed,
)
from tests.handlers.plan_desk import OPTIONS, Desk, Lookup, Model, SharedLookup, message
from tfs.codec.predict_request import KNOWN
from tfs.core.call import ListenerOptions, RpcMethod
from tfs.core.errors import Code
from tfs.core.executor import InlineExecutor
from tfs.core.servable import InferenceTask
from tfs.core.servable_handle import ServableHandle
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import ErrorCode, Setting
from tfs.proto.tensorflow_serving.apis import predict_pb2

PREDICT = "/tensorflow.serving.PredictionService/Predict"
LOW = (("tfs-priority", "low"),)

EXPECTED = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.FAILED_PRECONDITION,
    Code.UNAVAILABLE,
    Code.DEADLINE_EXCEEDED,
}


class LateModel(Model):
    """Ends its tasks when told to."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.tasks: list[InferenceTask] = []

    def submit(self, task: InferenceTask) -> None:
        self.tasks.append(task)

    def end_one(self) -> None:
        super().submit(self.tasks.pop(0))


@dataclass
class Client:
    """A client, and what it asked for."""

    raw: RawClient
    next_id: int = 1
    asked: dict[int, list[float]] = field(default_factory=dict)
    was_reset: set[int] = field(default_factory=set)
    may_be_lost: bool = False


class Storm:
    """Does one random thing after the other."""

    def __init__(self, rng: random.Random, path: str, lookup: Lookup) -> None:
        self.rng = rng
        self.path = path
        self.limit = limit = rng.choice((0, 0, 5, 40))
        self.desk = Desk(lookup, True, limit * 3, limit, options=rng.choice(OPTIONS))
        self.transport = ExpressTransport(self.desk.loop, None, InlineExecutor())
        handler = self.desk.handler
        self.transport.start(
            [ListenerOptions("storm", f"unix:{path}")],
            {PREDICT: RpcMethod(PREDICT, handler, burst_handler=handler.take_burst)},
        )
        self.models: list[LateModel] = []
        self.handles: list[ServableHandle[object]] = []
        self.clients: list[Client] = []
        self.number = 0.0
        self.swap()
        lookup.labels["stable"] = 1

    def swap(self) -> None:
        model = LateModel(len(self.models) + 1)
        self.models.append(model)
        self.handles.append(self.desk.publish(model))
        if len(self.handles) > 2:
            retire(self.desk.lookup.map, self.handles[-3], lambda: None)
            self.desk.gate.forget_version("m", len(self.handles) - 2)

    def connect(self) -> None:
        hello = HELLO
        if not self.rng.randrange(3):
            size = self.rng.choice((0, 3, 30, 60, 200))
            hello = frames.PREFACE + frames.settings(
                {Setting.INITIAL_WINDOW_SIZE: size}
            )
        raw = RawClient(self.path)
        raw.send(hello)
        self.clients.append(Client(raw))

    def request(self, client: Client) -> bytes:
        rng = self.rng
        stream_id = client.next_id
        client.next_id += 2
        self.number += 1.0
        rows = rng.choice((1, 1, 1, 1, 1, 2, 3))
        values = [self.number + index for index in range(2 * rows)]
        bodies: list[Callable[[], bytes]] = [
            *[lambda: message(*values)] * 8,
            lambda: message(*values, signature="both"),
            lambda: message(*values, signature="alone"),
            lambda: message(*values, label="stable"),
            lambda: message(*values, model="unknown"),
            lambda: message(-1.0, *values[1:]),
            lambda: b"\xff garbage",
        ]
        body = rng.choice(bodies)()
        client.asked[stream_id] = values
        extra = rng.choice(((), (), (), (), LOW, (("grpc-timeout", "3m"),)))
        block = literal_block(grpc_headers(*extra, path=PREDICT))
        return headers_frame(stream_id, block) + data_frame(stream_id, prefixed(body))

    def go_on(self) -> None:
        rng = self.rng
        if not self.clients or (len(self.clients) < 4 and not rng.randrange(10)):
            self.connect()
        client = rng.choice(self.clients)
        what = rng.randrange(20)
        if what < 9:
            data = b""
            for _ in range(rng.randrange(1, 9)):
                data += self.request(client)
                if not rng.randrange(6):
                    data += self.reset(client)
            if not rng.randrange(12):
                data += frames.frame(0x3, 0, 1, b"too short")  # breaks a rule
                client.may_be_lost = True
            self.send(client, data)
            if client in self.clients and not rng.randrange(12):
                self.leave(client)
        elif what < 15:
            for model in self.models:
                for _ in range(min(len(model.tasks), rng.randrange(3))):
                    model.end_one()
        elif what == 15:
            self.desk.clock.advance(rng.choice((0.001, 0.01)))
        elif what == 16:
            self.grant(client)
        elif what == 17 and not rng.randrange(3):
            self.swap()
        elif what == 18:
            self.send(client, self.reset(client))
        else:
            client.raw.read()
        if rng.randrange(3):
            self.desk.loop.step()

    def reset(self, client: Client) -> bytes:
        if not client.asked:
            return b""
        stream_id = self.rng.choice(list(client.asked))
        client.was_reset.add(stream_id)
        return frames.rst_stream(stream_id, ErrorCode.CANCEL)

    def grant(self, client: Client) -> None:
        """Opens the windows of what has not been answered whole."""
        self.send(
            client,
            b"".join(
                frames.window_update(stream_id, 5_000)
                for stream_id in client.asked
                if not client.raw.answer(stream_id).has_ended
            ),
        )

    def send(self, client: Client, data: bytes) -> None:
        """Sends it; whom the server has thrown out leaves."""
        try:
            client.raw.send(data)
        except BrokenPipeError:
            assert client.may_be_lost
            self.leave(client)

    def leave(self, client: Client) -> None:
        client.raw.close()
        self.clients.remove(client)

    def calm_down(self) -> None:
        """Ends everything that is under way."""
        for _ in range(3):
            self.desk.finish()
            for client in list(self.clients):
                self.grant(client)
            for _ in range(100):
                self.desk.loop.step()
                for model in self.models:
                    while model.tasks:
                        model.end_one()
            self.desk.clock.advance(0.02)

    def check(self) -> None:
        desk, transport = self.desk, self.transport
        assert [handle.num_pins for handle in self.handles] == [0] * len(self.handles)
        if self.limit:
            assert desk.gate.in_flight.num_taken == 0
            assert desk.gate.model("m").in_flight.num_taken == 0
        for version in range(1, len(self.models) + 1):
            for figures in (desk.gate.figures("m", version) or {}).values():
                assert all(each.num_in_flight == 0 for each in figures)
        assert transport.clients.counters.handler_failures == 0
        assert transport.clients.counters.failures == 0
        for connection in [each.connection for each in transport.clients.sessions]:
            assert not connection.state.num_cut_off
            assert not connection.streams
        assert transport.budget.used_bytes == 0
        for client in self.clients:
            if client.may_be_lost or client.raw.is_closed:
                continue
            for stream_id, values in client.asked.items():
                if stream_id not in client.was_reset:
                    self.check_answer(client.raw, stream_id, values)

    def check_answer(self, raw: RawClient, stream_id: int, values: list[float]) -> None:
        answer = raw.answer(stream_id)
        assert answer.has_ended
        assert answer.status is not None
        code = Code(int(answer.status))
        assert code in EXPECTED
        if code is Code.OK:
            (reply,) = answer.messages
            outputs = predict_pb2.PredictResponse.FromString(reply).outputs
            assert list(outputs["y"].float_val) == values

    def close(self) -> None:
        for client in self.clients:
            client.raw.close()
        self.transport.close()
        self.desk.loop.close()


def run(seed: int, folder: Path, num_steps: int) -> None:
    KNOWN.forget()
    lookup = (SharedLookup, SharedLookup, Lookup)[seed % 3]()
    storm = Storm(random.Random(seed), str(folder / f"{seed}.sock"), lookup)
    try:
        for _ in range(num_steps):
            storm.go_on()
        storm.calm_down()
        storm.check()
    finally:
        storm.close()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_clients_do_each_gets_its_own_answers(
    tmp_path: Path, seed: int
) -> None:
    """Nothing stays pinned, counted in or held, and nobody gets another's answer."""
    run(seed, tmp_path, 150)


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_whatever_clients_do_for_long(tmp_path: Path) -> None:
    """The same, for as long as a stress run may take."""
    for seed in range(100, 600):
        run(seed, tmp_path, 300)
