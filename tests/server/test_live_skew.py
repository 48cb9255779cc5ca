"""What requests bring is compared with what the version that answers was made for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.serving import (
    Serving,
    config_text,
    run_command,
    write_whole,
)
from tests.server.puppet import PuppetServable
from tests.server.validated import save_for, write_statistics
from tfs.client import Client
from tfs.core.errors import InvalidArgument
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.servable_id import ServableId
from tfs.core.stats import Stats
from tfs.core.version.input_statistics import MIN_VALUES, STATISTICS
from tfs.handlers.limits.answered_request import (
    MULTI_INFERENCE,
    PREDICT,
    AnsweredRequest,
)
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis.predict_pb2 import PredictRequest
from tfs.proto.tfs.v1.model_config_pb2 import Guard, Skew, Validation
from tfs.server.input_skew import LiveSkew
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loop import FakeLoop
from tfs.testing.held_executor import HeldExecutor
from tfs.testing.patience import PATIENCE_S

ONE = ServableId("a", 1)


class Watched:
    """A version of whose requests some are looked at, on the test's own thread."""

    def __init__(
        self,
        settings: Validation | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.loop = FakeLoop(self.clock)
        self.stats = Stats()
        self.settings = settings
        self.executor = executor or InlineExecutor()
        self.changes: list[set[str]] = []
        self.live = LiveSkew(
            lambda _: self.settings,
            self.executor,
            self.loop,
            self.clock,
            self.stats,
            self._note_change,
        )

    def _note_change(self, names: Collection[str]) -> None:
        self.changes.append(set(names))

    def begin_round(self) -> None:
        self.clock.advance(10.0)
        self.loop.run_due()

    def load(self, path: Path, version: int = 1) -> None:
        self.live.note(PuppetServable(ServableId("a", version)), str(path))
        self.loop.run_posted()

    def request(
        self, values: Sequence[float], num: int = 1, method: str = PREDICT
    ) -> int:
        """Answers requests; returns how many were looked at."""
        request = PredictRequest()
        tensor = request.inputs["x"]
        tensor.dtype = types_pb2.DT_FLOAT
        for size in (1, len(values)):
            tensor.tensor_shape.dim.add(size=size)
        tensor.float_val.extend(values)
        looked_at: list[None] = []

        def record(message: bytes) -> tuple[bytes, bytes]:
            looked_at.append(None)
            return message, b""

        made = partial(record, request.SerializeToString())
        for _ in range(num):
            size = request.ByteSize()
            self.live.log(
                AnsweredRequest(method, "a", 1, "serving_default", size, made)
            )
        self.loop.run_posted()
        return len(looked_at)

    def figures(self) -> dict[str, float]:
        """Returns what is told of input x."""
        return {
            dict(labels)["figure"]: value
            for name, labels, value in self.stats.counters()
            if name == "input_skew"
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A version made for values from 0 to 99."""
    write_statistics(tmp_path, [float(each) for each in range(100)])
    return tmp_path


def test_figures_follow_what_requests_bring(folder: Path) -> None:
    """With the first, then once a round; and they go with the version."""
    watched = Watched()
    watched.load(folder)
    watched.request([5.0] * MIN_VALUES)
    assert watched.figures() == {
        "drift": pytest.approx(0.74, abs=0.1),
        "out_of_range": 0,
        "missing": 0,
    }
    watched.request([200.0, float("nan")] * (MIN_VALUES // 2))
    assert watched.figures()["missing"] == 0
    watched.begin_round()
    found = watched.figures()
    assert found["missing"] == 0.25
    assert found["out_of_range"] == pytest.approx(1 / 3)
    watched.live.forget(ONE)
    assert watched.figures() == {}
    assert watched.live.skew(ONE) is None


def test_few_requests_of_each_round_are_looked_at(folder: Path) -> None:
    """Between rounds requests are not even logged; and no round begins for nobody."""
    watched = Watched()
    watched.load(folder)
    assert watched.live.wants("a")
    assert watched.request([1.0], num=30) == 10
    assert not watched.live.wants("a")
    watched.begin_round()
    assert watched.live.wants("a")
    assert watched.request([1.0], num=30) == 10
    assert watched.changes == [{"a"}] * 4
    watched.live.forget(ONE)
    watched.begin_round()
    assert (watched.live.wants("a"), watched.loop.timers) == (False, [])
    watched.load(folder)
    assert watched.live.wants("a")


def test_nothing_is_looked_at_without_recorded_figures(tmp_path: Path) -> None:
    """Unless the next version is to be compared with what came; damaged ones are none."""
    watched = Watched()
    watched.load(tmp_path)
    assert not watched.live.wants("a")
    settings = Validation(limits=Guard(), skew=Skew())
    compared = Watched(settings)
    compared.load(tmp_path)
    compared.request([1.0, 2.0])
    assert compared.live.values(ONE) == {"x": [1.0, 2.0]}
    (tmp_path / STATISTICS).write_text("{}}")
    watched.load(tmp_path, 2)
    watched.request([1.0] * MIN_VALUES)
    assert watched.figures() == {}


def test_what_is_sampled_is_bounded(folder: Path) -> None:
    """Of a large tensor some values anywhere in it; of a huge request, and many at once, none."""
    watched = Watched()
    watched.load(folder)
    watched.request([0.0] * 1000 + [1.0] * 1000)
    (values,) = watched.live.values(ONE).values()
    assert len(values) == 250
    assert set(values) == {0.0, 1.0}
    assert watched.request([2.0] * 1_100_000) == 0
    assert watched.request([2.0], method=MULTI_INFERENCE) == 0
    other = AnsweredRequest(PREDICT, "other", 1, "x", 0, lambda: (b"", b""))
    watched.live.log(other)
    assert 2.0 not in next(iter(watched.live.values(ONE).values()))
    watched.request([3.0] * 250, num=7)
    assert set(next(iter(watched.live.values(ONE).values()))) == {3.0}


def test_one_request_of_a_model_waits_for_its_decoding(folder: Path) -> None:
    """Those that come meanwhile are not even copied, however slow it is."""
    executor = HeldExecutor()
    watched = Watched(executor=executor)
    watched.load(folder)
    assert watched.request([1.0], num=30) == 1
    executor.run_held()
    assert watched.request([1.0], num=30) == 1


def test_after_a_request_that_cannot_be_sampled_the_next_is(folder: Path) -> None:
    """What its record raises is for whoever answers it to log."""

    def record() -> tuple[bytes, bytes]:
        raise InvalidArgument("no such tensor")

    watched = Watched()
    watched.load(folder)
    with pytest.raises(InvalidArgument):
        watched.live.log(AnsweredRequest(PREDICT, "a", 1, "x", 0, record))
    assert watched.request([1.0]) == 1


def test_limits_are_those_of_the_config_in_force(folder: Path) -> None:
    """Others count at once, though no request comes."""
    watched = Watched()
    watched.load(folder)
    watched.request([200.0] * MIN_VALUES)
    assert (watched.live.skew(ONE) or ())[1:] == ("",)
    limits = Skew(max_out_of_range=0.5)
    watched.settings = Validation(limits=Guard(), skew=limits)
    exceeded = (watched.live.skew(ONE) or ())[1:]
    assert exceeded == ("skew: x out_of_range 1 > 0.5",)


def test_a_server_tells_how_live_inputs_differ(tmp_path: Path) -> None:
    """As a metric, in its status beside the limit, and by refusing a version made for others."""
    base_path, file = tmp_path / "scale", tmp_path / "models"
    skew = "validation { skew { max_out_of_range: 0.5 } }"
    write_whole(file, config_text("scale", base_path, skew))
    save_for(base_path, [0.0, 2.0])
    with Serving(f"--model_config_file={file}") as server:
        server.wait_for("scale/1 is available")
        with Client(server.address, timeout_s=PATIENCE_S) as client:
            for _ in range(3):
                client.predict("scale", {"x": [[7.0, 7.0]] * MIN_VALUES})
        at = f"--address={server.address}"
        _, printed = run_command("status", "--stats", at)
        assert "version 1: live skew: x out_of_range 1 > 0.5" in printed, printed
        assert "figure=drift, input=x, model=scale, version=1" in printed
        assert "live skew: x drift 1" in run_command("models", at)[1]
        save_for(base_path, [0.0, 1.0])
        said = server.wait_for("servable_end servable=scale/2.*")
        assert "skew: x out_of_range 1 > 0.5" in said
        save_for(base_path, [6.0, 8.0])
        server.wait_for("scale/3 is available")
        assert server.stop() == 0
