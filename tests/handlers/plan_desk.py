"""A Predict handler whose rounds, models and time are the test's, and requests for it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from batching.batching_options import (
    BatchingOptions,
    QueuePolicy,
    options_from_parameters,
)
from batching.deadline_window import WindowOptions
from batching.shared_scheduler import SharedBatchScheduler
from managers.serving_map import ServingMap
from tfs.core.call import Call
from tfs.core.dtype import FLOAT32, INT32
from tfs.core.errors import (
    InvalidArgument,
    InvalidItems,
    ServingError,
)
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.core.servable import (
    InferenceTask,
    MakeInputs,
    OneByOne,
    Outcome,
    Servable,
    Tensors,
)
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.stats import Stats
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.predict import PredictHandler
from tfs.handlers.request_format import PredictFormat
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.servables.joining.batched import BatchedServable
from tfs.testing.fake_call import FakeCall
from tfs.testing.fake_clock import FakeClock

PAIR = Signature(
    Method.PREDICT,
    {"x": TensorSpec(FLOAT32, (-1, 2))},
    {"y": TensorSpec(FLOAT32, (-1, 2))},
)

TRIPLE = Signature(
    Method.PREDICT,
    {"x": TensorSpec(FLOAT32, (-1, 3))},
    {"y": TensorSpec(FLOAT32, (-1, 3))},
)

TWO_INPUTS = Signature(
    Method.PREDICT,
    {"a": TensorSpec(FLOAT32, (-1, 2)), "b": TensorSpec(INT32, (-1,))},
    {"y": TensorSpec(FLOAT32, (-1, 2)), "n": TensorSpec(INT32, (-1,))},
)

TYPED = Signature(
    Method.PREDICT,
    {"x": TensorSpec(FLOAT32, (-1, 2))},
    {"y": TensorSpec(INT32, (-1, 2))},
)

FREE_LENGTH = Signature(
    Method.PREDICT,
    {"x": TensorSpec(FLOAT32, (-1, -1), 0.0)},
    {"first": TensorSpec(FLOAT32, (-1,))},
)

SIGNATURES = {
    DEFAULT_SIGNATURE: PAIR,
    "both": TWO_INPUTS,
    "typed": TYPED,
    "free": FREE_LENGTH,
    "scaled": Signature(
        Method.PREDICT,
        {**PAIR.inputs, "scale": TensorSpec(FLOAT32, (1,))},
        PAIR.outputs,
        {"scale": TensorView(FLOAT32, (1,), bytes(4))},
    ),
    "alone": Signature(Method.PREDICT, PAIR.inputs, PAIR.outputs, batched=False),
}


class Model(OneByOne):
    """Outputs its inputs; a first element below 0 in a row makes that row invalid."""

    def __init__(
        self, version: int = 1, signatures: dict[str, Signature] | None = None
    ) -> None:
        self.id = ServableId("m", version)
        self.signatures = signatures or SIGNATURES
        self.num_calls = 0

    def submit(self, task: InferenceTask) -> None:
        self.num_calls += 1
        task.on_done(task.cancel.error or self._outcome(task))

    def _outcome(self, task: InferenceTask) -> Outcome:
        inputs = task.inputs
        x = inputs.get("x") or inputs["a"]
        rows = range(x.shape[0])
        row_bytes = len(x.data) // max(1, x.shape[0])
        bad = {
            row: "below 0"
            for row in rows
            if row_bytes
            and struct.unpack_from("<f", bytes(x.data), row * row_bytes)[0] < 0  # type: ignore[arg-type]
        }
        if bad:
            return InvalidItems(bad)
        return self._outputs(task, x)

    def _outputs(self, task: InferenceTask, x: TensorView) -> Tensors:
        if task.signature_name == "both":
            return {"y": x, "n": task.inputs["b"]}
        if task.signature_name == "typed":
            return {"y": TensorView(INT32, x.shape, x.data)}
        if task.signature_name == "free":
            size = 4 * x.shape[1]
            data = bytes(x.data)  # type: ignore[arg-type]  # no strings here
            firsts = b"".join(
                data[row * size : row * size + 4].ljust(4, b"\0")
                for row in range(x.shape[0])
            )
            return {"first": TensorView(FLOAT32, (x.shape[0],), firsts)}
        return {"y": x}


class PromptModel(Model):
    """The same, computed where it is asked for; counts those calls apart."""

    num_prompt_calls = 0

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        if num_tasks != 1:
            return None
        self.num_prompt_calls += 1
        signature = self.signatures[signature_name]
        return self._outcome(
            InferenceTask(signature_name, signature, make_inputs(), print, num_rows)
        )


class Lookup:
    """A serving map with labels, which looks each request up by itself."""

    def __init__(self, *servables: Servable) -> None:
        self.map = ServingMap()
        for each in servables:
            self.map.publish(ServableHandle(each.id, each))
        self.labels: dict[str, int] = {}

    def acquire(
        self,
        name: str,
        version: int | None,
        label: str | None,
        client_id: bytes | None,
        call: Call,
    ) -> ServableHandle[Servable]:
        return self.look_at(name, version, label)

    def look_at(
        self, name: str, version: int | None, label: str | None
    ) -> ServableHandle[Servable]:
        if label is not None:
            if label not in self.labels:
                raise InvalidArgument(f"Unrecognized servable version label: {label}")
            version = self.labels[label]
        if version is None:
            return self.map.acquire(name)  # type: ignore[return-value]
        return self.map.acquire_version(name, version)  # type: ignore[return-value]

    def acquire_shared(
        self, name: str, version: int | None, label: str | None, num: int
    ) -> ServableHandle[Servable] | None:
        return None  # each is looked up by itself


class SharedLookup(Lookup):
    """The same, with ``acquire_shared`` as the server's."""

    def acquire_shared(
        self, name: str, version: int | None, label: str | None, num: int
    ) -> ServableHandle[Servable] | None:
        handle = self.look_at(name, version, label)
        for _ in range(num - 1):
            handle.pin(None)
        return handle


@dataclass
class Desk:
    """A Predict handler on a stepped loop, with batching or without."""

    lookup: Lookup
    is_batched: bool = True
    max_in_flight: int = 0
    per_model: int = 0
    as_tensor_content: bool = False
    options: BatchingOptions | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.loop = ServingLoop(self.clock)
        self.scheduler = SharedBatchScheduler(clock=self.clock)
        self.loop.add_round_hook(self.scheduler.step, Phase.SCHEDULE)
        self.loop.step()  # from now on this thread is the loop's
        self.gate = RequestGate(
            self.max_in_flight, self.per_model, self.stats, self.clock
        )
        self.handler = PredictHandler(
            self.lookup, self.gate, form=PredictFormat(self.as_tensor_content)
        )

    def publish(self, model: Model) -> ServableHandle[object]:
        servable: Servable = model
        if self.is_batched:
            shown = ModelProfile(
                signatures={
                    name: SignatureProfile(rows_independent=True)
                    for name in model.signatures
                }
            )
            servable = BatchedServable(
                model, self.scheduler, self.loop, self.options, shown
            )
        handle: ServableHandle[object] = ServableHandle(model.id, servable)
        self.lookup.map.publish(handle)
        return handle

    def send(self, calls: Sequence[FakeCall]) -> None:
        self.handler.take_burst(calls)

    def finish(self) -> None:
        for _ in range(20):
            self.loop.step()

    def counted(self) -> dict[object, float]:
        return {
            (name, labels): value
            for name, labels, value in self.stats.counters()
            if name.startswith("requests")
        }

    def observed(self) -> dict[object, int]:
        return {
            (name, labels): snapshot.num
            for name, labels, snapshot in self.stats.histograms()
            if snapshot.num
        }


def message(
    *values: float,
    width: int = 2,
    model: str = "m",
    signature: str = "",
    label: str = "",
    version: int = 0,
    wanted: Sequence[str] = (),
    client_id: bytes = b"",
) -> bytes:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if label:
        request.model_spec.version_label = label
    if version:
        request.model_spec.version.value = version
    request.output_filter.extend(wanted)
    if client_id:
        request.client_id = client_id
    num_rows = len(values) // width
    x = request.inputs["a" if signature == "both" else "x"]
    x.dtype = types_pb2.DT_FLOAT
    x.tensor_shape.dim.add(size=num_rows)
    x.tensor_shape.dim.add(size=width)
    x.tensor_content = struct.pack(f"<{len(values)}f", *values)
    if signature == "both":
        b = request.inputs["b"]
        b.dtype = types_pb2.DT_INT32
        b.tensor_shape.dim.add(size=num_rows)
        b.tensor_content = struct.pack(
            f"<{num_rows}i", *[int(value) for value in values[::width]]
        )
    return request.SerializeToString()


def known(desk: Desk, *messages: bytes) -> None:
    """Has requests like these read once, so that there are templates of them."""
    desk.send([FakeCall(each) for each in messages])
    desk.finish()


def outcomes(calls: Sequence[FakeCall]) -> list[object]:
    assert [call.num_finishes for call in calls] == [1] * len(calls)
    return [
        (call.outcome.code, call.outcome.message)
        if isinstance(call.outcome, ServingError)
        else call.outcome
        for call in calls
    ]


def reply_of(call: FakeCall) -> predict_pb2.PredictResponse:
    assert isinstance(call.outcome, bytes), call.outcome
    return predict_pb2.PredictResponse.FromString(call.outcome)


OPTIONS = (
    None,
    options_from_parameters(max_batch_size=8, allowed_batch_sizes=(4, 8)),
    options_from_parameters(max_batch_size=4, batch_timeout_micros=1000),
    options_from_parameters(
        max_batch_size=5, max_execution_batch_size=3, enable_large_batch_splitting=True
    ),
    options_from_parameters(max_batch_size=4, max_enqueued_batches=1),
    options_from_parameters(
        max_batch_size=6, policy=QueuePolicy(window=WindowOptions())
    ),
    options_from_parameters(max_batch_size=8, pad_variable_length_inputs=True),
)
