from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.process_host import until
from tests.runtime.zoo import (
    DiesWhenLoaded,
    FailsAgain,
    LeavesAFileAndFails,
    MeetsWhenLoaded,
    Scale,
    SeesImports,
    WaitsWhenLoaded,
)
from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    ServingError,
    Unavailable,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable_id import ServableId
from tfs.runtime.process.crash_policy import CrashPolicy
from tfs.runtime.process.process_backend import ProcessBackend
from tfs.runtime.process.process_options import ProcessOptions
from tfs.testing.patience import PATIENCE_S

X = {"x": floats((1, 2))}
QUARANTINED: list[ServableId] = []


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    loop = ServingLoop(name="pool-loop")
    loop.start()
    backend = ProcessBackend(
        loop,
        ProcessOptions(
            crashes=CrashPolicy(max_crashes=3),
            on_quarantine=lambda servable, _: QUARANTINED.append(servable),
        ),
    )
    yield backend
    backend.close(time.monotonic() + PATIENCE_S)
    loop.close(time.monotonic() + PATIENCE_S)
    assert loop.num_failures == 0


def test_calls_run_side_by_side(backend: ProcessBackend, tmp_path: Path) -> None:
    """As many calls run at once as there are interpreters, each in its process."""
    pool = backend.pool(2)
    model = pool.load(package(tmp_path, Scale()))
    slow = [ask(model, {"x": floats((600, 0))}, "slow") for _ in range(2)]
    until(lambda: model._version.num_running == 2, "both busy")
    assert len(set(model.pids)) == 2
    assert pool.num_models == 1
    assert not pool.is_spent
    model.close(time.monotonic())
    for answer in (*slow, ask(model, X)):
        assert isinstance(answer.error(), Unavailable)
    assert not model.pids
    assert pool.is_spent


def test_no_call_waits_behind_a_long_one_while_another_interpreter_is_idle(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    """Whoever is idle first takes the oldest call that waits, wherever that is."""
    pool = backend.pool(2)
    model = pool.load(package(tmp_path, Scale()))
    long = ask(model, {"x": floats((600, 0))}, "slow")
    shorts = [ask(model, {"x": floats((0.02, 0))}, "slow") for _ in range(6)]
    for each in shorts:
        each.outputs()
    assert not long.is_there
    assert model.num_pending == 1
    model.close(time.monotonic())
    assert isinstance(long.error(), Unavailable)


def test_one_of_many_versions_grows_when_its_calls_wait(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    """One interpreter while others load and none while unused; all once calls wait."""
    may_grow = threading.Event()
    pool = backend.pool(2, may_grow.is_set)
    model = pool.load(package(tmp_path, Scale()))
    slow = [ask(model, {"x": floats((0.05, 0))}, "slow") for _ in range(2)]
    for answer in slow:
        answer.outputs()
    assert len(model.pids) == 1  # others were being loaded
    may_grow.set()
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    assert len(model.pids) == 1  # no call had to wait
    slow = [ask(model, {"x": floats((0.05, 0))}, "slow") for _ in range(2)]
    for answer in slow:
        answer.outputs()
    until(lambda: len(model.pids) == 2, "the second interpreter")
    model.unload()
    assert not model.pids
    assert pool.is_spent


def test_a_version_unloaded_while_it_grows_leaves_nothing(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    """Unloading waits for an interpreter that is being added, and ends it too."""
    pool = backend.pool(2, lambda: True)
    model = pool.load(package(tmp_path, Scale()))
    slow = [ask(model, {"x": floats((0.05, 0))}, "slow") for _ in range(2)]
    model.unload()
    for answer in slow:
        answer.outcome()
    assert isinstance(ask(model, X).error(), Unavailable)
    assert not model.pids
    assert pool.is_spent


def test_a_version_that_cannot_grow_serves_on(
    backend: ProcessBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not load in a second process: the log says so, and calls are answered."""
    pool = backend.pool(2, lambda: True)
    failing = FailsAgain(str(tmp_path / "once"))
    signatures = {"serving_default": signature()}
    model = pool.load(package(tmp_path, failing, signatures))
    answers = [ask(model, X) for _ in range(100)]
    until(lambda: "event=no_interpreter_added" in caplog.text, "the failure")
    for answer in (*answers, ask(model, X)):
        answer.outputs()
    assert model.num_deaths == 0
    model.unload()


def test_a_rehearsal_is_everywhere(backend: ProcessBackend, tmp_path: Path) -> None:
    """Whichever interpreter gets the first call, it is warm."""
    pool = backend.pool(2)
    model = pool.load(package(tmp_path, Scale()))
    model.rehearse("count", X, 30.0)
    slow = ask(model, {"x": floats((600, 0))}, "slow")  # takes one of them
    counts = [ask(model, X, "count") for _ in range(2)]
    assert [values(each.outputs()["y"]) for each in counts] == [[[2, 2]], [[3, 3]]]
    model.close(time.monotonic())
    assert isinstance(slow.error(), Unavailable)


def test_a_crash_in_one_leaves_the_others_serving(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    """While one comes back, the next call goes elsewhere or waits, and succeeds."""
    pool = backend.pool(2)
    model = pool.load(package(tmp_path, Scale()))
    crash = ask(model, {"x": floats((-1, 0))}, "crash")
    answers = [ask(model, X) for _ in range(20)]
    assert isinstance(crash.error(), Internal)
    for answer in answers:
        assert values(answer.outputs()["y"]) == [[2, 4]]
    assert model.num_deaths == 1
    assert model.last_death
    until(lambda: len(model.pids) == 2, "the second process")
    model.unload()


def test_crashes_of_a_version_count_together(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    """Whichever interpreter they happen in, the third quarantines all; said once."""
    QUARANTINED.clear()
    pool = backend.pool(2)
    model = pool.load(package(tmp_path, Scale(), name="crashing"))
    for _ in range(3):
        assert isinstance(ask(model, {"x": floats((-1, 0))}, "crash").error(), Internal)
    for _ in range(4):
        assert isinstance(ask(model, X).error(), FailedPrecondition)
    assert [ServableId("crashing", 1)] == QUARANTINED
    model.unload()


@pytest.mark.parametrize("fails_in", ["the first", "a later one"])
def test_a_load_that_fails_in_one_leaves_none(
    backend: ProcessBackend, tmp_path: Path, fails_in: str
) -> None:
    """The version is on all interpreters or on none: what has loaded is unloaded again."""
    later = FailsAgain(str(tmp_path / "one"))
    model = DiesWhenLoaded() if fails_in == "the first" else later
    pool = backend.pool(3)
    with pytest.raises(ServingError, match="scale/1"):
        pool.load(package(tmp_path, model, {"serving_default": signature()}))
    until(lambda: pool.is_spent, "the end of all processes")


def test_all_but_the_first_load_at_once(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    """Each of the two others waits, while it is unpickled, for the third to be there."""
    pool = backend.pool(3)
    meeting = MeetsWhenLoaded(str(tmp_path / "here"))
    model = pool.load(package(tmp_path, meeting, {"serving_default": signature()}))
    assert values(ask(model, X).outputs()["y"]) == [[1, 2]]
    assert len(list((tmp_path / "here").iterdir())) == 3
    model.unload()


def test_a_slow_load_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    """While the first is still unpickled, the others load too: it waits for them."""
    loop = ServingLoop(name="slow-loop")
    loop.start()
    backend = ProcessBackend(loop, ProcessOptions(slow_load_s=0.01))
    try:
        waiting = WaitsWhenLoaded(str(tmp_path / "here"))
        source = package(tmp_path, waiting, {"serving_default": signature()})
        pool = backend.pool(3)
        model = pool.load(source)
        assert values(ask(model, X).outputs()["y"]) == [[1, 2]]
        assert len(list((tmp_path / "here").iterdir())) == 3
        model.unload()
        until(lambda: pool.is_spent, "the end of all processes")
    finally:
        backend.close(time.monotonic() + PATIENCE_S)
        loop.close(time.monotonic() + PATIENCE_S)


def test_a_load_that_fails_at_once_is_tried_in_one_only(tmp_path: Path) -> None:
    """What crashes while it is loaded does so once, however many interpreters wait."""
    loop = ServingLoop(name="failing-loop")
    loop.start()
    backend = ProcessBackend(loop, ProcessOptions(slow_load_s=PATIENCE_S))
    try:
        failing = LeavesAFileAndFails(str(tmp_path / "here"))
        source = package(tmp_path, failing, {"serving_default": signature()})
        pool = backend.pool(3)
        with pytest.raises(ServingError, match="scale/1"):
            pool.load(source)
        assert len(list((tmp_path / "here").iterdir())) == 1
        until(lambda: pool.is_spent, "the end of all processes")
    finally:
        backend.close(time.monotonic() + PATIENCE_S)
        loop.close(time.monotonic() + PATIENCE_S)


def test_a_worker_has_imported_what_model_authors_do(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    """A module that exports its own model loads as fast; of the servers nothing."""
    pool = backend.pool(1)
    model = pool.load(
        package(tmp_path, SeesImports(), {"serving_default": signature()})
    )
    assert values(ask(model, X).outputs()["y"]) == [[1, 0]]
    model.unload()


def test_a_pool_needs_a_process(backend: ProcessBackend) -> None:
    """A pool of none is refused: it would answer nothing."""
    with pytest.raises(ValueError, match="process"):
        backend.pool(0)
