"""Backend dlmopen, beyond what every backend promises: private CPythons."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.runtime.answers import ask
from tests.runtime.dlmopen_host import needs_dlmopen
from tests.runtime.packaged import (
    SHOUT_SIGNATURES,
    floats,
    package,
    signature,
    values,
)
from tests.runtime.process_host import until
from tests.runtime.zoo import ForksAndWaits, Scale, Shout, WaitsForFile, Weighted
from tests.threads import run_together
from tfs.core.dtype import STRING
from tfs.core.errors import FailedPrecondition, Unavailable
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.dlmopen import dlmopen_namespace
from tfs.runtime.dlmopen.dlmopen_backend import DlmopenBackend
from tfs.runtime.dlmopen.dlmopen_interpreter import CallTurn, DlmopenInterpreter
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.interpreter_manager import InterpreterManager
from tfs.testing.patience import PATIENCE_S

X_ANSWER = {"y": floats((1, 2))}
X = {"x": floats((1, 2))}


@pytest.fixture
def interpreter() -> Iterator[DlmopenInterpreter]:
    needs_dlmopen()
    interpreter = DlmopenInterpreter("dlmopen-test")
    yield interpreter
    interpreter.close(time.monotonic() + PATIENCE_S)


@pytest.fixture
def manager() -> Iterator[InterpreterManager]:
    needs_dlmopen()
    with InterpreterManager(2, backend="dlmopen") as manager:
        yield manager


def call(model: InlineModel, inputs: Tensors, name: str = "serving_default") -> Tensors:
    """Calls a model on this thread, past the interpreter's queue."""
    assert model.guest is not None
    return model.guest.call(name, inputs)


def test_a_caller_may_call_on_its_own_thread(
    interpreter: DlmopenInterpreter, tmp_path: Path
) -> None:
    """Without the queue, the answer is the same; unloaded, nothing is left to call."""
    loaded = interpreter.load(package(tmp_path, Scale()))
    assert call(loaded, X) == ask(loaded, X).outputs()
    loaded.unload()
    assert loaded.guest is None
    with pytest.raises(Unavailable, match="scale/1"):
        ask(loaded, X).outputs()


def test_a_caller_does_not_wait_for_ever_behind_a_call_that_hangs(
    tmp_path: Path,
) -> None:
    """It is told so, and answered once that call has ended after all."""
    needs_dlmopen()
    backend = DlmopenBackend(1, call_timeout_s=0.2)
    folder = tmp_path / "calls"
    only = {"serving_default": signature()}
    source = package(tmp_path, WaitsForFile(str(folder)), only, name="waits")
    waits = backend.group(1).load(source)
    interpreter, model = waits.members[0]
    other = interpreter.load(package(tmp_path, Scale()))
    answers: list[object] = []
    caller = threading.Thread(target=lambda: answers.append(call(model, X)))
    caller.start()
    until(folder.exists, "the call")
    with pytest.raises(FailedPrecondition, match=r"a call has been running in"):
        call(other, X)
    (folder / "another").touch()
    caller.join(PATIENCE_S)
    assert answers == [X_ANSWER]
    assert values(call(other, X)["y"]) == [[2, 4]]
    backend.close(time.monotonic() + PATIENCE_S)


def test_threads_come_and_go(interpreter: DlmopenInterpreter, tmp_path: Path) -> None:
    """A thread may enter a namespace and end; both C libraries stay in order."""
    loaded = interpreter.load(package(tmp_path, Scale()))
    wrong: list[object] = []

    def visit(value: int) -> None:
        outputs = call(loaded, {"x": floats((value, value))})
        if values(outputs["y"]) != [[2 * value, 2 * value]]:
            wrong.append(value)

    for first in range(0, 200, 8):
        run_together(*(partial(visit, first + index) for index in range(8)))
    assert wrong == []
    loaded.unload()


def test_requests_and_replies_of_any_size_pass(
    interpreter: DlmopenInterpreter, tmp_path: Path
) -> None:
    """They are read where they lie, whatever their size."""
    loaded = interpreter.load(package(tmp_path, Shout(), SHOUT_SIGNATURES))
    for num_bytes in (1, 70_000, 1_000_000, 3, 65_500):
        text = TensorView(STRING, (2,), (b"a" * num_bytes, b"b"))
        outputs = call(loaded, {"text": text})
        assert outputs["loud"].data == (b"A" * num_bytes, b"B")
        assert values(outputs["length"]) == [num_bytes, 1]
    loaded.unload()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_inputs_may_lie_in_any_buffer(
    interpreter: DlmopenInterpreter, tmp_path: Path, kind: type
) -> None:
    """A slice of a request's bytes is read where it lies."""
    loaded = interpreter.load(package(tmp_path, Scale()))
    whole = b"12345678" + bytes(X["x"].data)  # type: ignore[arg-type]
    data = memoryview(whole)[8:] if kind is memoryview else kind(whole[8:])
    view = TensorView(X["x"].dtype, (1, 2), data)
    assert values(call(loaded, {"x": view})["y"]) == [[2, 4]]
    loaded.unload()


def test_large_outputs_are_given_up_at_once(
    interpreter: DlmopenInterpreter, tmp_path: Path
) -> None:
    """An answer of many megabytes comes whole, and the next call is not confused."""
    loaded = interpreter.load(package(tmp_path, Scale()))
    rows = torch.rand(1 << 19, 2)
    view = TensorView(X["x"].dtype, tuple(rows.shape), rows.numpy().tobytes())
    outputs = call(loaded, {"x": view})
    assert outputs["y"].data == (rows * 2).numpy().tobytes()
    assert values(call(loaded, X)["y"]) == [[2, 4]]
    loaded.unload()


def test_each_interpreter_has_a_gil_of_its_own(manager: InterpreterManager) -> None:
    """One that computes in C under its GIL holds up neither us nor the other."""
    finished = threading.Event()
    begun = threading.Event()

    def hold() -> None:
        with manager.acquire_session() as session:
            total = session.global_("builtins", "sum")
            numbers = session.global_("builtins", "range")(10**8)
            begun.set()
            total(numbers).value()
            finished.set()

    thread = threading.Thread(target=hold)
    with manager.acquire_session() as session:
        root = session.global_("math", "sqrt")
        thread.start()
        assert begun.wait(PATIENCE_S)
        for _ in range(10):
            assert root(4.0).value() == 2.0
        assert not finished.is_set()
    thread.join(2 * PATIENCE_S)
    assert finished.is_set()


def test_what_one_interpreter_sets_no_other_sees(manager: InterpreterManager) -> None:
    """Modules, environment and torch's settings are the interpreter's own."""
    with manager.acquire_session() as first, manager.acquire_session() as second:
        first.global_("torch", "manual_seed")(7)
        second.global_("torch", "manual_seed")(7)
        first.global_("torch", "rand")(1)
        rest = first.global_("torch", "rand")(3).value()
        fresh = second.global_("torch", "rand")(3).value()
        assert not torch.equal(rest, fresh)  # type: ignore[arg-type]
        first.global_("os", "putenv")("TFS_TEST_PRIVATE", "1")
        seen = second.global_("os", "getenv")("TFS_TEST_PRIVATE").value()
        assert seen is None
        assert (
            first.global_("os", "getpid")().value()
            == second.global_("os", "getpid")().value()
        )


def test_libraries_that_want_to_be_global_are_loaded_locally(
    manager: InterpreterManager,
) -> None:
    """The loader would crash over RTLD_GLOBAL in a namespace."""
    with manager.acquire_session() as session:
        load = session.global_("ctypes", "CDLL")
        load("libm.so.6", 0x100)
        session.global_("sys", "setdlopenflags")(0x102)
        assert session.global_("sys", "getdlopenflags")().value() == 2


def test_a_namespace_is_used_again(tmp_path: Path) -> None:
    """It cannot be unloaded; the next interpreter gets it, with nothing in it."""
    needs_dlmopen()
    with InterpreterManager(1, backend="dlmopen") as manager:
        manager.acquire_session().close()
    count = len(dlmopen_namespace._all)
    for factor in (2.0, 3.0):
        interpreter = DlmopenInterpreter("dlmopen-again")
        loaded = interpreter.load(package(tmp_path / str(factor), Scale(factor)))
        answer = call(loaded, {"x": floats((1, 1))})
        assert values(answer["y"]) == [[factor, factor]]
        assert values(ask(loaded, X, "count").outputs()["y"]) == [[1, 1]]
        interpreter.close(time.monotonic() + PATIENCE_S)
    assert len(dlmopen_namespace._all) == count


def test_closing_waits_for_a_call_and_keeps_the_namespace_for_others() -> None:
    """One that was lost would be one of few, with its memory, until the process ends."""
    needs_dlmopen()
    manager = InterpreterManager(1, backend="dlmopen")
    session = manager.acquire_session()
    sleep = session.global_("time", "sleep")
    channel = manager._lender.interpreters[0].channel
    assert isinstance(channel, DlmopenInterpreter)
    caller = threading.Thread(target=lambda: sleep(0.3))
    caller.start()
    until(lambda: channel.num_unanswered > 0, "the call")
    manager.close()
    caller.join(PATIENCE_S)
    assert channel._namespace is None


def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    """All interpreters map the same pages, and none has copies of its own."""
    needs_dlmopen()
    num_bytes = 32 << 20
    backend = DlmopenBackend(2)
    group = backend.group()
    totals = {"serving_default": signature(), "total": signature()}
    loaded = group.load(package(tmp_path, Weighted(num_bytes // 4), totals, "heavy"))
    for _, model in loaded.members:
        call(model, X, "total")
    maps = _mappings("tfs:model.pt", num_bytes)
    assert len(maps) == 2
    # A page that both have read counts half for each.
    assert sum(each["Pss"] for each in maps) < 1.5 * num_bytes
    assert [each["Anonymous"] for each in maps] == [0, 0]
    loaded.unload()
    assert _mappings("tfs:model.pt", num_bytes) == []
    backend.close(time.monotonic() + PATIENCE_S)


def _mappings(name: str, min_bytes: int) -> list[dict[str, int]]:
    """Returns the sizes, in bytes, of this process's large mappings of a file."""
    found: list[dict[str, int]] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if "-" in key.split(" ")[0]:
            inside = name in line
            if inside:
                found.append({})
        elif inside and rest.endswith(" kB"):
            found[-1][key] = int(rest.split()[0]) << 10
    return [each for each in found if each["Size"] >= min_bytes]


def test_a_model_can_be_measured(
    interpreter: DlmopenInterpreter, tmp_path: Path
) -> None:
    """A probe learns how long a call took there, and the import."""
    loaded = interpreter.load(package(tmp_path, Scale()))
    assert loaded.last_call_s is None
    ask(loaded, X).outputs()
    assert loaded.last_call_s is not None
    assert loaded.last_call_s > 0
    assert loaded.loaded.import_s is not None
    loaded.unload()


def test_another_device_is_refused(
    interpreter: DlmopenInterpreter, tmp_path: Path
) -> None:
    """Every namespace would have a CUDA context of its own."""
    source = package(tmp_path, Scale())
    with pytest.raises(FailedPrecondition, match=r"scale/1.*CPU only"):
        interpreter.load(replace(source, device="cuda"))


def test_a_group_spreads_calls_and_versions(tmp_path: Path) -> None:
    """Each version gets as many interpreters as it asks for, the emptier ones first."""
    needs_dlmopen()
    backend = DlmopenBackend(2)
    one = backend.group(1)
    first = one.load(package(tmp_path / "1", Scale(2.0)))
    assert values(ask(first, X).outputs()["y"]) == [[2, 4]]
    second = backend.group(1).load(package(tmp_path / "2", Scale(3.0)))
    slow = ask(first, {"x": floats((1, 0))}, "slow")
    assert values(ask(second, X).outputs()["y"]) == [[3, 6]]
    assert not slow.is_there
    slow.outputs()
    first.unload()
    second.unload()
    backend.close(time.monotonic() + PATIENCE_S)
    backend.close(time.monotonic() + PATIENCE_S)


def test_a_signal_to_a_models_fork_is_not_the_hosts(
    interpreter: DlmopenInterpreter, tmp_path: Path
) -> None:
    """A pool of processes that a model ends by SIGTERM would end the server."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    try:
        model = interpreter.load(package(tmp_path, ForksAndWaits(), name="forks"))
        status = values(ask(model, {"x": floats((2, 0))}).outputs()["y"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert status == [[signal.SIGTERM, signal.SIGTERM]]


def test_who_waits_gets_the_turn_when_the_call_ends() -> None:
    """A call that takes its time keeps others waiting, and refuses nobody."""
    turn = CallTurn("dlmopen-0", None)
    got = threading.Event()

    def wait() -> None:
        with turn:
            got.set()

    waiter = threading.Thread(target=wait)
    with turn:
        waiter.start()
        assert turn.is_taken
        assert not got.is_set()
    assert got.wait(PATIENCE_S)
    waiter.join(PATIENCE_S)
    assert not turn.is_taken
