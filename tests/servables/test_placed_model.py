from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, values
from tests.runtime.zoo import Scale
from tfs.core.errors import FailedPrecondition, Unavailable
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.servables.loaded_version import PlacedModel
from tfs.testing.patience import PATIENCE_S


def test_a_move_loses_no_task(tmp_path: Path) -> None:
    """What was submitted before runs there, what comes after runs here."""
    source = package(tmp_path, Scale())
    first, second = InlineInterpreter("first"), InlineInterpreter("second")
    placed = PlacedModel(first.load(source))
    old = placed.model
    before = [ask(placed, {"x": floats((0.05, 1))}, "slow") for _ in range(3)]
    mover = threading.Thread(target=placed.move, args=(second.load(source),))
    mover.start()
    after = []
    while mover.is_alive():
        after.append(ask(placed, {"x": floats((1, 1))}))
        after[-1].outputs()
    after.append(ask(placed, {"x": floats((1, 1))}))
    for answer in (*before, *after):
        assert values(answer.outputs()["y"])[0][1] == 2  # type: ignore[index]
    assert {answer.thread_name for answer in before} == {"first"}
    assert after[-1].thread_name == "second"
    assert isinstance(ask(old, {"x": floats((1, 1))}).error(), Unavailable)
    placed.unload()
    assert isinstance(ask(placed, {"x": floats((1, 1))}).error(), Unavailable)
    for interpreter in (first, second):
        interpreter.close(time.monotonic() + PATIENCE_S)


def test_a_move_past_its_deadline_says_so(tmp_path: Path) -> None:
    """The move stands; the old place is left alone until the version is unloaded."""
    source = package(tmp_path, Scale())
    interpreter = InlineInterpreter()
    placed = PlacedModel(interpreter.load(source))
    old = placed.model
    running = ask(placed, {"x": floats((0.2, 1))}, "slow")
    new = interpreter.load(source)
    with pytest.raises(FailedPrecondition, match="scale/1"):
        placed.move(new, time.monotonic())
    assert placed.model is new
    running.outputs()
    ask(old, {"x": floats((1, 1))}).outputs()
    placed.unload()
    assert isinstance(ask(old, {"x": floats((1, 1))}).error(), Unavailable)
    interpreter.close(time.monotonic() + PATIENCE_S)
