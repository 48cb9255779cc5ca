"""A call that hangs keeps others from waiting behind it, on its thread and elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, values
from tests.runtime.process_host import until
from tests.runtime.zoo import Scale
from tfs.core.errors import FailedPrecondition, Internal
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.dlmopen.call_turn import CallTurn
from tfs.runtime.dlmopen.dlmopen_interpreter import DlmopenInterpreter
from tfs.runtime.guest.guest_model import Output, Value
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.pooled_model import PooledModel
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S

TIMEOUT_S = 5.0
X = {"x": floats((1, 2))}


class Gate:
    """A model whose calls end when they are let through. Returns its inputs as ``y``.

    Args:
        source: The version.
        turn: Held during calls, as in a private Python.

    """

    def __init__(self, source: ModelSource, turn: CallTurn) -> None:
        self._source = source
        self._turn = turn
        self.entered = threading.Event()
        self.opened = threading.Event()

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        self._turn.take(self._source.id)
        try:
            self.entered.set()
            assert self.opened.wait(PATIENCE_S)
        finally:
            self._turn.end()
        return {"y": inputs["x"]}

    def run(
        self, signature_name: str, inputs: Mapping[str, Value], num_rows: int
    ) -> dict[str, Output]:
        raise NotImplementedError

    def close(self) -> None:
        self.opened.set()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def told() -> list[tuple[str, str]]:
    """What was said of hanging calls: the version and the text."""
    return []


@pytest.fixture
def turn(clock: FakeClock, told: list[tuple[str, str]]) -> CallTurn:
    return CallTurn(
        "dlmopen-0",
        TIMEOUT_S,
        clock.now,
        lambda who, text: told.append((who.slashed, text)),
    )


@pytest.fixture
def interpreter(clock: FakeClock, turn: CallTurn) -> Iterator[InlineInterpreter]:
    """The thread of a private Python, without one."""
    interpreter = InlineInterpreter(
        clock=clock, load_model=lambda source, _: Gate(source, turn), hung=turn.error
    )
    interpreter.start()
    yield interpreter
    interpreter.close()


def test_a_call_that_hangs_has_others_refused_until_it_ends(
    interpreter: InlineInterpreter, turn: CallTurn, clock: FakeClock, tmp_path: Path
) -> None:
    """Who waits and who comes learns what hangs; its own caller gets its answer."""
    model = interpreter.load(package(tmp_path, Scale()))
    gate = model.guest
    assert isinstance(gate, Gate)
    hanging = ask(model, X)
    assert gate.entered.wait(PATIENCE_S)
    waiting = ask(model, X)
    clock.advance(TIMEOUT_S - 1)
    assert not turn.is_hung
    clock.advance(1)
    assert turn.is_hung
    for refused in (ask(model, X), waiting):
        error = refused.error()
        assert isinstance(error, FailedPrecondition)
        assert model.source.id.slashed in error.message
        assert "cannot be ended. Restart" in error.message
    assert not hanging.is_there
    gate.opened.set()
    assert values(hanging.outputs()["y"]) == [[1, 2]]
    until(lambda: not turn.is_hung, "its end")
    assert values(ask(model, X).outputs()["y"]) == [[1, 2]]


def test_a_version_that_is_slow_has_ten_times_its_time(
    interpreter: InlineInterpreter, turn: CallTurn, clock: FakeClock, tmp_path: Path
) -> None:
    """What took long and ended well does not hang the next time."""
    model = interpreter.load(package(tmp_path, Scale()))
    gate = model.guest
    assert isinstance(gate, Gate)
    for allowed_s in (TIMEOUT_S, 40.0):
        gate.entered.clear()
        gate.opened.clear()
        call = ask(model, X)
        assert gate.entered.wait(PATIENCE_S)
        clock.advance(allowed_s - 1)
        assert not turn.is_hung
        gate.opened.set()
        call.outputs()
        until(lambda: interpreter.num_pending == 0, "its end")


def test_a_group_prefers_interpreters_where_nothing_hangs(
    monkeypatch: pytest.MonkeyPatch,
    interpreter: InlineInterpreter,
    turn: CallTurn,
    clock: FakeClock,
    tmp_path: Path,
) -> None:
    """However many calls wait elsewhere, they will be answered there."""
    private = DlmopenInterpreter("dlmopen-0", clock=clock, call_timeout_s=TIMEOUT_S)
    monkeypatch.setattr(private, "_thread", interpreter)
    monkeypatch.setattr(private, "_calling", turn)
    other = InlineInterpreter("other")
    other.start()
    source = package(tmp_path, Scale())
    hanging, well = interpreter.load(source), other.load(source)
    ask(hanging, X)
    gate = hanging.guest
    assert isinstance(gate, Gate)
    assert gate.entered.wait(PATIENCE_S)
    clock.advance(TIMEOUT_S + 1)
    assert private.num_pending > 256
    first = cast("InlineInterpreter", private)
    spread = PooledModel([(first, hanging), (other, well)])
    assert values(ask(spread, X).outputs()["y"]) == [[2, 4]]
    gate.opened.set()  # else its end would be waited for
    other.close()


def test_whoever_reports_is_told_of_a_hang_and_of_its_end(
    interpreter: InlineInterpreter,
    clock: FakeClock,
    told: list[tuple[str, str]],
    tmp_path: Path,
) -> None:
    """A hang is reported once, and its end once, however often anybody looks."""
    model = interpreter.load(package(tmp_path, Scale()))
    gate = model.guest
    assert isinstance(gate, Gate)
    hanging = ask(model, X)
    assert gate.entered.wait(PATIENCE_S)
    clock.advance(TIMEOUT_S + 1)
    for _ in range(3):
        ask(model, X).error()
    assert [who for who, _ in told] == ["scale/1"]
    assert "hangs in interpreter dlmopen-0" in told[0][1]
    gate.opened.set()
    hanging.outputs()
    until(lambda: len(told) == 2, "the end of it")
    assert told[1] == ("scale/1", "")


def test_unloading_another_version_does_not_wait_for_a_call_that_hangs(
    interpreter: InlineInterpreter, clock: FakeClock, tmp_path: Path
) -> None:
    """It says that the memory is not free yet; it is when the call ends after all."""
    source = package(tmp_path, Scale())
    hanging, idle = interpreter.load(source), interpreter.load(source)
    gate, idle_gate = hanging.guest, idle.guest
    assert isinstance(gate, Gate)
    assert isinstance(idle_gate, Gate)
    call = ask(hanging, X)
    assert gate.entered.wait(PATIENCE_S)
    clock.advance(TIMEOUT_S + 1)
    with pytest.raises(Internal, match=r"cannot be unloaded.*when that ends"):
        idle.unload()
    assert not idle_gate.opened.is_set()
    gate.opened.set()
    call.outputs()
    assert idle_gate.opened.wait(PATIENCE_S)


def test_a_group_unloads_where_it_can(
    interpreter: InlineInterpreter, clock: FakeClock, tmp_path: Path
) -> None:
    """That one interpreter hangs keeps the others from nothing; who asked is told."""
    others_turn = CallTurn("other", None)
    other = InlineInterpreter(
        "other", load_model=lambda source, _: Gate(source, others_turn)
    )
    other.start()
    source = package(tmp_path, Scale())
    hanging, well = interpreter.load(source), other.load(source)
    gate, other_gate = hanging.guest, well.guest
    assert isinstance(gate, Gate)
    assert isinstance(other_gate, Gate)
    ask(hanging, X)
    assert gate.entered.wait(PATIENCE_S)
    clock.advance(TIMEOUT_S + 1)
    spread = PooledModel([(interpreter, hanging), (other, well)])
    with pytest.raises(Internal, match="cannot be unloaded"):
        spread.unload()
    assert other_gate.opened.is_set()
    gate.opened.set()
    other.close()
