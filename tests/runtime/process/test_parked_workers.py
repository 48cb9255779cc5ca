"""Workers that are reused for the next version of the same code."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.runtime.answers import ask
from tests.runtime.meddlers import LEAVES_NOTHING, LEAVES_SOMETHING, Meddler
from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.process_host import ProcessHost, is_gone, process_host, until
from tfs.core.process_memory import anonymous_bytes, resident_bytes
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process import parked_workers, spare_worker, zygote_client
from tfs.runtime.process.parked_workers import ParkedWorkers
from tfs.runtime.process.process_backend import ProcessBackend
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.zygote_process import ZygoteProcess
from tfs.testing.patience import PATIENCE_S

X = {"x": floats((1, 2))}
SIGNATURES = {
    "serving_default": signature(),
    **{name: signature() for name in (*LEAVES_NOTHING, *LEAVES_SOMETHING)},
}


class Versions:
    """Versions of one servable that come and go, each on an interpreter of its own."""

    def __init__(self, host: ProcessHost, folder: Path) -> None:
        self.host = host
        self._folder = folder
        self.spare = SpareWorker(host.loop, host.zygote, WorkerOptions())
        self.parked = ParkedWorkers(host.loop)
        self.number = 0
        # Somebody who wants workers: there is a spare from now on, also when all go.
        self.holder = self._interpreter(uses_parked=False)
        self.holder.hold()

    def source(
        self, code: str = "code", name: str = "scale", num_weights: int = 1
    ) -> ModelSource:
        """The next version: it multiplies by its number."""
        self.number += 1
        model = Meddler(float(self.number), num_weights)
        source = package(self._folder, model, SIGNATURES, name, self.number)
        return replace(source, code_digest=code)

    def load(self, source: ModelSource) -> ProcessModel:
        """Loads it, with a worker in reserve."""
        until(lambda: self.spare.pid is not None, "a spare")
        return self.load_now(source)

    def load_now(self, source: ModelSource, *, has_spare: bool = True) -> ProcessModel:
        """Loads it on whatever worker there is."""
        return self._interpreter(uses_parked=True, has_spare=has_spare).load(source)

    def load_twice(self) -> list[ProcessModel]:
        """Loads two versions, the second where it may be beside the first."""
        return [self.load(self.source()) for _ in range(2)]

    def unload(self, model: ProcessModel) -> int:
        """Unloads it, until its worker is parked or gone; returns the process."""
        pid = model.worker_pid
        assert pid is not None
        model.unload()
        until(lambda: pid in self.parked.pids or is_gone(pid), "parked or gone")
        return pid

    def come_and_go(self, method: str = "serving_default") -> int:
        """Has a version called once; returns the process it had."""
        model = self.load(self.source())
        ask(model, X, method).outputs()
        return self.unload(model)

    def close(self) -> None:
        self.holder.let_go()
        self.host.on_loop(self.parked.close)
        self.host.on_loop(self.spare.close)

    def _interpreter(
        self, *, uses_parked: bool, has_spare: bool = True
    ) -> ProcessInterpreter:
        host = self.host
        interpreter = ProcessInterpreter(
            f"process-{len(host.interpreters)}",
            host.loop,
            host.zygote,
            spare=self.spare if has_spare else None,
            parked=self.parked if uses_parked else None,
        )
        host.interpreters.append(interpreter)
        return interpreter


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares come at once, and nothing ends because the machine is busy.

    Who cleans up runs when nobody else wants to: beside eight others, five seconds can
    pass before it does.
    """
    monkeypatch.setattr(spare_worker, "_QUIET_S", 0.01)
    monkeypatch.setattr(parked_workers, "_CLEANING_S", PATIENCE_S)
    monkeypatch.setattr(parked_workers, "_AGE_S", 10 * PATIENCE_S)


@pytest.fixture
def versions(host: ProcessHost, tmp_path: Path) -> Iterator[Versions]:
    versions = Versions(host, tmp_path)
    yield versions
    versions.close()


def test_the_next_version_has_the_process_of_the_one_before(versions: Versions) -> None:
    """It answers by its own weights, without a fork and without the end of a process."""
    first = versions.come_and_go()
    until(lambda: versions.spare.pid is not None, "the next spare")
    spare = versions.spare.pid
    for number in range(2, 6):
        model = versions.load(versions.source())
        assert model.worker_pid == first
        assert values(ask(model, X).outputs()["y"]) == [[number, 2 * number]]
        assert versions.unload(model) == first
    assert versions.spare.pid == spare
    assert versions.parked.num_reused == 4


def test_a_process_is_named_after_what_it_runs(versions: Versions) -> None:
    """A process has the name of what it runs, for top and for the kernel's log."""
    model = versions.load(versions.source(name="scale"))
    assert name_of(model.worker_pid) == "tfs:scale/1"
    assert name_of(versions.unload(model)) == "tfs-worker"
    long = versions.load(versions.source(name="recommendations"))
    assert name_of(long.worker_pid) == "tfs:recommendat"
    beside = versions.host.interpreters[-1].load(versions.source(name="beside"))
    assert name_of(beside.worker_pid) == "tfs:beside/3"
    beside.unload()
    assert name_of(long.worker_pid) == "tfs:recommendat"
    assert name_of(versions.host.zygote.pid) == "tfs-zygote"


def name_of(pid: int | None) -> str:
    """Returns what the system calls a process."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux has idle time")
@pytest.mark.skipif(
    os.sched_getscheduler(0) != os.SCHED_OTHER, reason="the operator's policy stays"
)
def test_what_loaded_quickly_loads_in_idle_time_the_next_time(
    versions: Versions, tmp_path: Path
) -> None:
    """Nobody waits for it then; a first load may be long, and is not left to starve."""

    def policy() -> list[object]:
        versions.number += 1
        folder = tmp_path / "policy" / str(versions.number)
        folder.mkdir(parents=True)
        (folder / "servable.py").write_text(
            "import os\n"
            "POLICY = os.sched_getscheduler(0)\n"
            "class Servable:\n"
            "    def predict(self, x):\n"
            "        return x * 0 + POLICY\n"
        )
        source = ModelSource(
            id=ServableId("policy", versions.number),
            path=str(folder),
            platform="python",
            entry={},
            signatures={"serving_default": signature()},
            code_digest="policy",
        )
        model = versions.load(source)
        found = values(ask(model, X).outputs()["y"])
        versions.unload(model)
        return found

    assert policy() == [[os.SCHED_OTHER, os.SCHED_OTHER]]
    # On a busy machine a load may take long, and the next one has its time.
    idle = [[os.SCHED_IDLE, os.SCHED_IDLE]]
    assert any(policy() == idle for _ in range(20))


def test_a_version_never_sees_the_globals_of_another(versions: Versions) -> None:
    """Its modules are imported anew, under the same names as in a fresh process."""
    seen = []
    for _ in range(3):
        model = versions.load(versions.source())
        seen += [values(ask(model, X, "count").outputs()["y"])[0] for _ in range(2)]
        versions.unload(model)
    assert seen[:2] == seen[2:4] == seen[4:]
    assert seen[0] != seen[1]
    assert versions.parked.num_reused == 2


def test_random_numbers_are_each_versions_own(versions: Versions) -> None:
    """Torch's and Python's: as in forks, nobody repeats another, nor goes on from it."""
    drawn: set[object] = set()
    for _ in range(3):
        model = versions.load(versions.source())
        (numbers,) = values(ask(model, X, "draw").outputs()["y"])
        assert isinstance(numbers, list)
        drawn.update(numbers)
        versions.unload(model)
    assert len(drawn) == 6
    assert versions.parked.num_reused == 2


def test_loggers_are_each_versions_own(versions: Versions) -> None:
    """One that a version makes, with its handlers, is not the next one's."""
    for _ in range(3):
        model = versions.load(versions.source())
        outputs = ask(model, X, "name_a_logger").outputs()
        assert values(outputs["y"]) == [[1.0, 1.0]]
        versions.unload(model)
    assert versions.parked.num_reused == 2


def test_what_remembers_results_is_emptied(versions: Versions) -> None:
    """Patterns, types and the like that a model used are no reason to end its worker."""
    pid = versions.come_and_go("use_what_remembers")
    assert versions.come_and_go() == pid


@pytest.mark.parametrize("deed", LEAVES_SOMETHING)
def test_a_process_that_is_not_as_it_was_is_ended(
    versions: Versions, deed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a model left behind: the next version gets a process without it."""
    caplog.set_level("INFO", logger=parked_workers.__name__)
    pid = versions.come_and_go(deed)
    until(lambda: is_gone(pid), "its end")
    (told,) = (r for r in caplog.records if "worker_not_reused" in r.getMessage())
    assert "why=''" not in told.getMessage()
    model = versions.load(versions.source())
    assert model.worker_pid != pid
    assert values(ask(model, X, "describe").outputs()["y"]) == [[0, 1]]
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]


def test_a_process_that_does_not_clean_up_in_time_is_ended(
    versions: Versions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may have been stopped, or hang; the log says that this is why."""
    caplog.set_level("INFO", logger=parked_workers.__name__)
    monkeypatch.setattr(parked_workers, "_CLEANING_S", 0.05)
    model = versions.load(versions.source())
    pid = model.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    model.unload()
    until(lambda: is_gone(pid), "its end")
    (told,) = (r for r in caplog.records if "worker_not_reused" in r.getMessage())
    assert "did not clean up within 0.05 s" in told.getMessage()


@pytest.mark.parametrize(("code", "name"), [("other", "scale"), ("code", "other")])
def test_other_code_and_other_servables_get_another_process(
    versions: Versions, code: str, name: str
) -> None:
    """A worker is kept for one servable, and one code of it."""
    pid = versions.come_and_go()
    model = versions.load(versions.source(code, name))
    assert model.worker_pid != pid
    assert versions.parked.pids == [pid]


def test_where_nobody_knows_the_code_workers_end(versions: Versions) -> None:
    """A version without a digest is not known to be like another."""
    model = versions.load(versions.source(code=""))
    pid = versions.unload(model)
    assert is_gone(pid)


def test_workers_that_were_no_spares_end(versions: Versions) -> None:
    """Nobody noted how they were before they had a model."""
    model = versions.load_now(versions.source(), has_spare=False)
    pid = versions.unload(model)
    assert is_gone(pid)


def test_workers_that_had_code_on_their_control_thread_end(versions: Versions) -> None:
    """What it set there is not looked at: a version that was measured, for one."""
    model = versions.load(versions.source())
    assert model.two_thread_scaling("serving_default", X, 0.01) is not None
    pid = versions.unload(model)
    assert is_gone(pid)


def test_a_parked_worker_holds_nothing_of_its_model(versions: Versions) -> None:
    """Its weights' memory and that of its calls go back to the system."""
    before = versions.come_and_go()
    held_bytes, made_bytes = _bytes_of(before)
    source = versions.source(num_weights=16 << 20)
    model = versions.load(source)
    ask(model, X, "use_all_weights").outputs()
    during_bytes, _ = _bytes_of(before)
    assert versions.unload(model) == before
    after_bytes, left_bytes = _bytes_of(before)
    assert during_bytes - held_bytes > 60 << 20
    assert after_bytes - held_bytes < (during_bytes - held_bytes) * 0.05
    assert left_bytes - made_bytes < 4 << 20
    with open(f"/proc/{before}/maps") as maps:
        assert "model.pt" not in maps.read()


def _bytes_of(pid: int) -> tuple[int, int]:
    """What a process holds, and what of it it made itself."""
    held_bytes, made_bytes = resident_bytes(pid), anonymous_bytes(pid)
    assert held_bytes is not None
    assert made_bytes is not None
    return held_bytes, made_bytes


def test_all_workers_of_a_version_are_kept(versions: Versions) -> None:
    """A version that has two processes leaves both to the next one."""
    pids = [versions.unload(model) for model in versions.load_twice()]
    assert [model.worker_pid for model in versions.load_twice()] == pids


def test_few_workers_are_kept(versions: Versions) -> None:
    """Those that come first: in a wave of swaps nobody cleans up for nothing."""
    versions.parked = ParkedWorkers(versions.host.loop, most=2)
    models = [versions.load(versions.source(name=name)) for name in "abc"]
    pids = [versions.unload(model) for model in models]
    assert versions.parked.pids == pids[:2]
    assert is_gone(pids[2])


def test_there_is_room_for_all_workers_of_the_largest_version(
    versions: Versions,
) -> None:
    """All workers of the largest version may be parked, whatever the usual bound is."""
    versions.parked = ParkedWorkers(versions.host.loop, most=1)
    versions.host.on_loop(lambda: versions.parked.expect(2))
    versions.host.on_loop(lambda: versions.parked.expect(1))
    pids = [versions.unload(model) for model in versions.load_twice()]
    assert versions.parked.pids == pids


def test_a_worker_is_reused_a_bounded_number_of_times(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each version leaves behind, too little to be seen, does not add up."""
    monkeypatch.setattr(parked_workers, "_MOST_USES", 2)
    first, second, third = (versions.come_and_go() for _ in range(3))
    assert first == second != third
    assert is_gone(first)


def test_who_cleans_up_is_shown_that_requests_come(versions: Versions) -> None:
    """They must not be late for it; when it is done, the loop does nothing more."""
    looks: list[None] = []
    host = versions.host

    def is_answering() -> bool:
        looks.append(None)
        return True

    options = ProcessOptions(is_answering=is_answering, has_traffic=lambda: True)
    versions.parked = ParkedWorkers(host.loop, options)
    pid = versions.come_and_go()
    assert versions.parked.pids == [pid]
    assert looks
    looks.clear()
    for _ in range(3):
        host.on_loop(lambda: None)
    assert not looks


def test_a_worker_that_dies_as_it_cleans_up_is_shown_nothing_more(
    versions: Versions,
) -> None:
    """Its memory is gone: writing to it would fail in every round."""
    host = versions.host
    options = ProcessOptions(is_answering=lambda: True, has_traffic=lambda: True)
    versions.parked = ParkedWorkers(host.loop, options)
    model = versions.load(versions.source())
    pid = model.worker_pid
    assert pid is not None
    model.unload()
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in versions.parked.all_pids, "its end")
    host.on_loop(lambda: None)
    num_failures: list[int] = []
    host.on_loop(lambda: num_failures.append(host.loop.num_failures))
    assert num_failures == [0]


def test_a_worker_that_nobody_takes_ends(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parked worker that is not taken in time ends."""
    monkeypatch.setattr(parked_workers, "_AGE_S", 0.0)
    pid = versions.come_and_go()
    until(lambda: is_gone(pid), "its end")
    assert versions.parked.pids == []


def test_the_workers_of_a_servable_that_is_gone_end(versions: Versions) -> None:
    """Nothing is kept for a version that is not to come; others keep theirs."""
    models = [versions.load(versions.source(name=name)) for name in "ab"]
    gone, kept = (versions.unload(model) for model in models)
    versions.host.on_loop(lambda: versions.parked.forget("a"))
    assert versions.parked.pids == versions.parked.all_pids == [kept]
    until(lambda: is_gone(gone), "its end")


def test_a_parked_worker_that_was_killed_is_forgotten(versions: Versions) -> None:
    """The next version is loaded on another process, whoever ended this one."""
    pid = versions.come_and_go()
    os.kill(pid, signal.SIGKILL)
    until(lambda: versions.parked.pids == [], "that its death is noticed")
    assert versions.come_and_go() != pid


def test_a_parked_worker_that_has_just_died_is_not_taken(versions: Versions) -> None:
    """A parked worker that has died is not taken, even before its death is reported."""
    pid = versions.come_and_go()
    source = versions.source()
    code = parked_workers.same_code_of(source)
    assert code is not None
    taken: list[object] = []

    def kill_and_take() -> None:
        process = psutil.Process(pid)
        process.kill()
        psutil.wait_procs([process], timeout=30)
        taken.append(versions.parked.take(code))

    versions.host.on_loop(kill_and_take)
    assert taken == [None]


def test_a_worker_that_dies_over_its_model_is_followed_by_the_parked_one(
    versions: Versions,
) -> None:
    """A crash is no matter of versions: whoever knows the code is up first."""
    parked, model = versions.come_and_go(), versions.load(versions.source())
    assert model.worker_pid == parked
    other = versions.load(versions.source())
    free = versions.unload(other)
    assert free != parked
    os.kill(parked, signal.SIGKILL)
    until(lambda: model.worker_pid == free, "the next worker")
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]


def test_a_parked_worker_outlives_its_zygote(tmp_path: Path) -> None:
    """The next version needs no fork, and so nobody who could make one."""
    with process_host() as host:
        versions = Versions(host, tmp_path)
        pid = versions.come_and_go()
        zygote = host.zygote.pid
        assert zygote is not None
        os.kill(zygote, signal.SIGKILL)
        until(lambda: host.zygote.pid != zygote, "that this is noticed")
        model = versions.load_now(versions.source())
        assert model.worker_pid == pid
        assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
        versions.close()


def test_nothing_is_left_when_the_backend_closes(
    host: ProcessHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A parked worker ends with the backend that made it."""
    monkeypatch.setattr(zygote_client, "ZygoteProcess", ZygoteProcess)  # its own
    before = set(psutil.Process().children(recursive=True))
    backend = ProcessBackend(host.loop, ProcessOptions(keeps_spare=True))
    source = replace(package(tmp_path, Meddler(), SIGNATURES), code_digest="code")
    first = backend.pool(1).load(source)
    until(lambda: backend.spare_pid is not None, "a spare")
    second = backend.pool(1).load(source)
    second.unload()
    until(lambda: len(backend.parked_pids) == 1, "a parked worker")
    first.unload()
    ours = set(psutil.Process().children(recursive=True)) - before
    assert ours
    backend.close()
    until(lambda: not any(each.is_running() for each in ours), "their end")
