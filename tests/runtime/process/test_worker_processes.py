"""What only processes promise: crashes contained, nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import math
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.present import present
from tests.python_program import output_of
from tests.runtime.answers import Answer, ask
from tests.runtime.packaged import (
    SHOUT_SIGNATURES,
    floats,
    package,
    signature,
    values,
)
from tests.runtime.process_host import (
    ProcessHost,
    is_gone,
    pid_of,
    process_host,
    until,
)
from tests.runtime.zoo import (
    DiesWhenLoaded,
    FailsAgain,
    Hoarder,
    Leaks,
    Scale,
    Shout,
    TellsHandlers,
    Weighted,
)
from tfs.core.dtype import FLOAT32, STRING
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    ServingError,
    Unavailable,
)
from tfs.core.executor import ThreadExecutor
from tfs.core.servable import CancelToken
from tfs.core.servable_id import ServableId
from tfs.core.signature import TensorSpec
from tfs.core.system import thread_priority
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process import worker, zygote
from tfs.runtime.process.crash_policy import CrashPolicy, KernelCount
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.zygote_process import ZygoteProcess

X = {"x": floats((1, 2))}


@pytest.fixture
def loaded(host: ProcessHost, tmp_path: Path) -> ProcessModel:
    """A model in a process of its own, with the options of the default."""
    return host.pool().load(package(tmp_path, Scale()))


def open_files() -> list[str]:
    """What this process holds open, without what listing takes."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(found)


def mapped_bytes(pid: int, name: str) -> dict[str, int]:
    """Memory of the process's mappings of a file, by the kinds of smaps."""
    found: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if "-" in key.split()[0]:
            inside = name in line
        elif inside and rest.endswith("kB"):
            found[key] = found.get(key, 0) + (int(rest.split()[0]) << 10)
    return found


def num_begun(model: ProcessModel) -> int:
    """Returns how many calls a worker says it has begun."""
    process = model._workers[0].process
    return 0 if process is None else process.num_started()


def test_workers_compete_with_the_server_by_their_priority(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Systems that share processors out by session would give a load half of one.

    Zygotes are in another process group, as Ctrl-C is the server's to handle.
    """
    pid = pid_of(host.pool().load(package(tmp_path, Scale())))
    zygote_pid = present(host.zygote.pid)
    assert os.getsid(pid) == os.getsid(0)
    assert os.getsid(zygote_pid) == os.getsid(0)
    assert os.getpgid(zygote_pid) != os.getpgid(0)


def test_a_crash_fails_the_call_that_crashed_and_no_other(
    host: ProcessHost, tmp_path: Path
) -> None:
    """INTERNAL names the model and the signal; what waited is answered afterwards."""
    interpreter = host.pool()
    crashing = interpreter.load(package(tmp_path, Scale(), name="crashing"))
    bystander = interpreter.load(package(tmp_path, Scale(3.0), name="bystander"))
    first_pid, other_pid = pid_of(crashing), pid_of(bystander)
    before = [ask(bystander, X) for _ in range(3)]
    victim = ask(crashing, {"x": floats((-1, 0))}, "crash")
    after = [ask(model, X) for model in (bystander, crashing, bystander)]
    error = victim.error()
    assert isinstance(error, Internal)
    assert "crashing/1" in error.message
    assert "SIGSEGV" in error.message
    for answer in before:
        assert values(answer.outputs()["y"]) == [[3, 6]]
    assert [values(answer.outputs()["y"]) for answer in after] == [
        [[3, 6]],
        [[2, 4]],
        [[3, 6]],
    ]
    assert crashing.num_deaths == 1
    assert pid_of(crashing) != first_pid
    assert is_gone(first_pid)
    assert pid_of(bystander) == other_pid


def test_a_worker_killed_in_a_call_is_replaced(
    loaded: ProcessModel, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGKILL, as the kernel sends when memory runs out, is a crash like any other.

    The log names the version: the interpreter's own name tells an operator nothing.
    """
    running = ask(loaded, {"x": floats((30, 0))}, "slow")
    until(lambda: num_begun(loaded) == 1, "the call")
    os.kill(pid_of(loaded), signal.SIGKILL)
    error = running.error()
    assert isinstance(error, Internal)
    assert "scale/1" in error.message
    assert "SIGKILL" in error.message
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    (died,) = (each for each in caplog.messages if "event=interpreter_died" in each)
    assert "servable=scale/1" in died


def test_a_limit_that_keeps_workers_from_starting_is_named(
    host: ProcessHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody thinks of `ulimit -f`, a limit of files, where a process does not start."""

    def too_large(*_: object) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(worker, "WorkerProcess", too_large)
    with pytest.raises(Unavailable, match=r"File too large: .*ulimit -f"):
        host.pool().load(package(tmp_path, Scale()))


def test_a_worker_killed_while_idle_is_replaced_unseen(loaded: ProcessModel) -> None:
    """Nobody gets an error when nobody was in a call."""
    pid = pid_of(loaded)
    os.kill(pid, signal.SIGKILL)
    until(lambda: loaded.num_deaths == 1, "the death")
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    assert pid_of(loaded) != pid


def test_a_call_that_meets_a_killed_worker_is_no_crash(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Whoever kills an idle worker, again and again, has it replaced each time."""
    interpreter = host.pool(ProcessOptions(crashes=CrashPolicy(max_crashes=1)))
    loaded = interpreter.load(package(tmp_path, Scale()))
    for _ in range(3):
        assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
        pid = pid_of(loaded)
        answers: list[Answer] = []

        def kill_and_ask(pid: int = pid, answers: list[Answer] = answers) -> None:
            os.kill(pid, signal.SIGKILL)  # before the loop can hear of it
            answers.append(ask(loaded, X))

        host.on_loop(kill_and_ask)
        # It never ran, so it is sent again.
        assert values(answers[0].outputs()["y"]) == [[2, 4]]
        assert pid_of(loaded) != pid
    deaths, now_s = loaded._workers[0]._deaths, host.loop.clock.now()
    assert deaths.respawn_delay_s(now_s) == deaths.num_recent(now_s) == 0


@pytest.mark.parametrize("num_calls", [0, 100])
def test_a_kill_from_outside_is_no_crash_of_a_model_that_worked_well(
    host: ProcessHost, tmp_path: Path, num_calls: int
) -> None:
    """Whoever is killed again before it has done anything, is."""
    interpreter = host.pool(ProcessOptions(crashes=CrashPolicy(max_crashes=1)))
    loaded = interpreter.load(package(tmp_path, Scale()))
    for _ in range(num_calls):
        ask(loaded, X).outputs()
    running = ask(loaded, {"x": floats((60, 0))}, "slow")
    until(lambda: num_begun(loaded) == num_calls + 1, "the call")
    os.kill(pid_of(loaded), signal.SIGKILL)
    assert isinstance(running.error(), Internal)
    if num_calls:
        assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    else:
        assert isinstance(ask(loaded, X).error(), FailedPrecondition)


def test_a_kill_is_no_crash_after_a_hundred_calls_of_several_workers(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Whoever kills workers faster than they answer a hundred calls quarantines nothing."""
    interpreter = host.pool(ProcessOptions(crashes=CrashPolicy(max_crashes=3)))
    loaded = interpreter.load(package(tmp_path, Scale()))
    for _ in range(6):
        for _ in range(40):
            ask(loaded, X).outputs()
        running = ask(loaded, {"x": floats((60, 0))}, "slow")
        until(lambda: num_begun(loaded) == 41, "the call")
        os.kill(pid_of(loaded), signal.SIGKILL)
        assert isinstance(running.error(), Internal)
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]


def test_who_is_ended_for_memory_again_and_again_is_quarantined(
    host: ProcessHost, tmp_path: Path
) -> None:
    """A version that leaks for hours goes on; one whose requests take all memory does not."""
    kills: list[str] = []  # by the kernel
    options = ProcessOptions(
        crashes=CrashPolicy(max_crashes=1),
        memory_kills=KernelCount(lambda: len(kills)),
    )
    interpreter = host.pool(options)
    loaded = interpreter.load(package(tmp_path, Scale()))

    def killed_after(num_calls: int) -> str:
        for _ in range(num_calls):
            ask(loaded, X).outputs()
        before = num_begun(loaded)
        running = ask(loaded, {"x": floats((60, 0))}, "slow")
        until(lambda: num_begun(loaded) == before + 1, "the call")
        os.kill(pid_of(loaded), signal.SIGKILL)
        return str(running.error())

    for kill in ("the first", "the second"):
        kills.append(kill)
        assert "for want of memory" in killed_after(100)
        assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    assert "for want of memory" not in killed_after(4)  # somebody else
    kills.append("too soon")
    assert "for want of memory" in killed_after(5)
    refused = ask(loaded, X).error()
    assert isinstance(refused, FailedPrecondition)
    assert "for want of memory" in refused.message


def test_a_version_that_keeps_crashing_is_quarantined_alone(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Its callers get FAILED_PRECONDITION with the reason; its neighbour serves on."""
    told: list[tuple[ServableId, str]] = []
    interpreter = host.pool(
        ProcessOptions(
            crashes=CrashPolicy(max_crashes=2),
            on_quarantine=lambda servable, why: told.append((servable, why)),
        )
    )
    crashing = interpreter.load(package(tmp_path, Scale(), name="crashing"))
    bystander = interpreter.load(package(tmp_path, Scale(), name="bystander"))
    for _ in range(2):
        error = ask(crashing, {"x": floats((-1, 0))}, "crash").error()
        assert isinstance(error, Internal)
    refused = ask(crashing, X).error()
    assert isinstance(refused, FailedPrecondition)
    assert "crashing/1 is quarantined" in refused.message
    assert "SIGSEGV" in refused.message
    assert [str(servable) for servable, _ in told] == ["{name: crashing version: 1}"]
    assert "crashed 2 times" in told[0][1]
    assert values(ask(bystander, X).outputs()["y"]) == [[2, 4]]
    crashing.unload()
    assert values(ask(bystander, X).outputs()["y"]) == [[2, 4]]


def test_a_version_that_does_not_load_again_is_quarantined_at_once(
    host: ProcessHost, tmp_path: Path
) -> None:
    """The next worker would get no further; also where nothing bounds calls and loads."""
    told: list[str] = []

    def tell(_: ServableId, why: str) -> None:
        told.append(why)
        raise ValueError("who listens fails")

    interpreter = host.pool(
        ProcessOptions(
            call_timeout_s=math.inf, load_timeout_s=math.inf, on_quarantine=tell
        )
    )
    once = FailsAgain(str(tmp_path / "once"))
    loaded = interpreter.load(package(tmp_path, once, {"serving_default": signature()}))
    os.kill(pid_of(loaded), signal.SIGKILL)
    until(lambda: bool(told), "the quarantine")
    error = ask(loaded, X).error()
    assert isinstance(error, FailedPrecondition)
    assert "does not load again" in error.message
    loaded.unload()
    assert len(told) == 1


def test_a_call_that_never_ends_is_ended(host: ProcessHost, tmp_path: Path) -> None:
    """Past the call timeout the interpreter is replaced and the caller told why."""
    interpreter = host.pool(ProcessOptions(call_timeout_s=0.2))
    loaded = interpreter.load(package(tmp_path, Scale()))
    error = ask(loaded, {"x": floats((60, 0))}, "slow").error()
    assert isinstance(error, Internal)
    assert "a call took over" in error.message
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]


def test_deadlines_of_clients_end_nothing(host: ProcessHost, tmp_path: Path) -> None:
    """1,000 tasks with 1 ms deadlines against a 20 ms model: no restart, others served.

    Half of them are cancelled as the server does it, half only expire.
    """
    interpreter = host.pool(ProcessOptions(max_queued=2000))
    loaded = interpreter.load(package(tmp_path, Scale()))
    pid = pid_of(loaded)
    slow = {"x": floats((0.02, 1))}
    hopeless, patient, tokens = [], [], []
    for index in range(1000):
        token = CancelToken()
        deadline_s = time.monotonic() + 0.001
        hopeless.append(ask(loaded, slow, "slow", deadline_s=deadline_s, cancel=token))
        if index % 2:
            tokens.append(token)
        if index % 200 == 0:
            patient.append(ask(loaded, slow, "slow"))
    for token in tokens:
        token.cancel(DeadlineExceeded("too late"))
    for answer in patient:
        assert values(answer.outputs()["y"])[0][1] == 2  # type: ignore[index]
    outcomes = [answer.outcome() for answer in hopeless]
    errors = [each for each in outcomes if isinstance(each, ServingError)]
    assert all(isinstance(each, DeadlineExceeded) for each in errors)
    assert len(errors) > 900
    assert loaded.num_deaths == 0
    assert pid_of(loaded) == pid


def test_tensors_larger_than_the_slab_pass(host: ProcessHost, tmp_path: Path) -> None:
    """What no slot holds travels in a memfd, and nothing of it stays open."""
    interpreter = host.pool(ProcessOptions(worker=WorkerOptions(slab_bytes=1 << 20)))
    wide = TensorSpec(FLOAT32, (-1, 1 << 18))
    signatures = {
        "serving_default": signature({"y": wide}, {"x": wide}),
        "both": signature({"scaled": wide, "next": wide}, {"x": wide}),
    }
    loaded = interpreter.load(package(tmp_path, Scale(), signatures))
    rows = torch.arange(2 << 18, dtype=torch.float32).view(2, -1)
    large = TensorView(FLOAT32, (2, 1 << 18), rows.numpy().tobytes())
    small = TensorView(FLOAT32, (0, 1 << 18), b"")
    before = len(os.listdir("/proc/self/fd"))
    worker_before = len(os.listdir(f"/proc/{pid_of(loaded)}/fd"))
    for _ in range(3):
        assert (
            ask(loaded, {"x": large}).outputs()["y"].data
            == (rows * 2).numpy().tobytes()
        )
        both = ask(loaded, {"x": large}, "both").outputs()
        assert both["next"].data == (rows + 1).numpy().tobytes()
        assert ask(loaded, {"x": small}).outputs()["y"].shape == (0, 1 << 18)
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(os.listdir(f"/proc/{pid_of(loaded)}/fd")) == worker_before


def test_interpreters_hold_weights_once(host: ProcessHost, tmp_path: Path) -> None:
    """The bytes of a model count once, whoever runs it, and only pages are private."""
    num_bytes = 64 << 20
    source = package(
        tmp_path,
        Weighted(num_bytes // 4),
        {"serving_default": signature(), "total": signature()},
    )
    loaded = host.pool(num_processes=3).load(source)
    loaded.rehearse("total", X, 60.0)
    pids = loaded.pids
    assert len(pids) == 3
    weights = [mapped_bytes(pid, "model.pt") for pid in pids]
    assert all(each["Rss"] >= num_bytes for each in weights)
    assert sum(each["Pss"] for each in weights) < 1.1 * num_bytes
    assert all(each["Private_Dirty"] == 0 for each in weights)
    private = [psutil.Process(pid).memory_full_info().uss for pid in pids]
    assert max(private) < num_bytes // 2


def test_unloading_ends_the_process(host: ProcessHost, tmp_path: Path) -> None:
    """All memory is back at once; the next load gets a new process."""
    source = package(tmp_path, Scale())
    pool = host.pool()
    one, two = pool.load(source), pool.load(source)
    pid = pid_of(one)
    one.unload()
    until(lambda: is_gone(pid), "the end of the process")
    assert not one.pids
    assert values(ask(two, X).outputs()["y"]) == [[2, 4]]
    again = pool.load(source)
    assert values(ask(again, X).outputs()["y"]) == [[2, 4]]


def test_a_version_that_kills_its_loader_is_refused(
    host: ProcessHost, tmp_path: Path
) -> None:
    """The load fails by name; what the interpreter served before, it serves again."""
    interpreter = host.pool()
    loaded = interpreter.load(package(tmp_path, Scale()))
    deadly = package(
        tmp_path, DiesWhenLoaded(), {"serving_default": signature()}, name="deadly"
    )
    with pytest.raises(Internal, match=r"deadly/1.*SIGKILL"):
        interpreter.load(deadly)
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    assert interpreter.num_models == 1


def test_a_version_that_never_loads_is_given_up(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Past the load timeout the load fails and its process goes."""
    interpreter = host.pool(ProcessOptions(load_timeout_s=0.5))
    endless = package(tmp_path, DiesWhenLoaded(60.0), {"serving_default": signature()})
    with pytest.raises(Internal, match=r"scale/1.*loading took over"):
        interpreter.load(endless)
    assert interpreter.num_models == 0


def kinds_of_descriptors(pid: int) -> list[str]:
    """What a process holds beyond the standard three; looks again if it closes one."""
    while True:
        try:
            return sorted(
                os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0]
                for fd in os.listdir(f"/proc/{pid}/fd")
                if int(fd) > 2
            )
        except FileNotFoundError:
            continue


def test_a_worker_holds_its_own_descriptors_only(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Nothing of the server, the zygote or another worker is inherited."""
    source = package(tmp_path, Scale())
    loaded = host.pool(num_processes=2).load(source)
    ask(loaded, X).outputs()
    assert len(loaded.pids) == 2
    for pid in loaded.pids:
        # A worker that has answered may look at its own pages for a moment.
        kinds = [
            kind for kind in kinds_of_descriptors(pid) if not kind.endswith("/pagemap")
        ]
        # Slab and archive, each once more for its mapping and its reader.
        assert [kind for kind in kinds if not kind.startswith("/memfd")] == [
            "anon_inode",
            "pipe",
            "pipe",
            "socket",
            "socket",
        ]
        assert kinds.count("/memfd") <= 5
        with open(f"/proc/{pid}/maps") as maps:
            text = maps.read()
        assert "grpc" not in text
        assert "google/_upb" not in text  # protobuf's library
    assert len(os.listdir(f"/proc/{present(host.zygote.pid)}/task")) == 1


def test_closing_leaves_no_descriptor_and_no_process(tmp_path: Path) -> None:
    """After the host closed everything it has what it had, and no children."""
    # In a process of its own: in this one, other tests' gRPC channels still close.
    code = (
        "from pathlib import Path; "
        "from tests.runtime.process.test_worker_processes import check_nothing_is_left; "
        f"check_nothing_is_left(Path({str(tmp_path)!r}))"
    )
    output_of("-c", code)


def check_nothing_is_left(tmp_path: Path) -> None:
    """Opens and closes a host; raises AssertionError for what stays."""

    def serve(source: ModelSource) -> list[int]:
        with process_host() as host:
            loaded = host.pool().load(source)
            ask(loaded, X).outputs()
            assert host.zygote.pid is not None
            return [pid_of(loaded), host.zygote.pid]

    source = package(tmp_path, Scale())
    gc.collect()
    before = open_files()
    for pid in serve(source):
        until(lambda pid=pid: is_gone(pid), "the end of the processes")  # type: ignore[misc]

    def is_as_before() -> bool:
        gc.collect()  # the loop's wake-up goes with its last reference, a thread's
        return open_files() == before

    until(is_as_before, "the end of the loop")


def test_a_zygote_without_users_is_ended(tmp_path: Path) -> None:
    """It goes after its time, and the next load brings another."""
    source = package(tmp_path, Scale())
    with process_host(linger_s=0.05) as host:
        interpreter = host.pool()
        loaded = interpreter.load(source)
        first = present(host.zygote.pid)
        loaded.unload()
        until(lambda: is_gone(first), "the end of the zygote")
        again = interpreter.load(source)
        assert values(ask(again, X).outputs()["y"]) == [[2, 4]]
        assert host.zygote.pid != first


def test_workers_serve_on_when_the_zygote_is_killed(
    loaded: ProcessModel, host: ProcessHost
) -> None:
    """A call that runs meanwhile is answered, and the next one by the same worker."""
    pid, zygote_pid = pid_of(loaded), host.zygote.pid
    assert zygote_pid is not None
    running = ask(loaded, {"x": floats((0.2, 1))}, "slow")
    until(lambda: loaded.num_pending == 1, "the call")
    os.kill(zygote_pid, signal.SIGKILL)
    until(lambda: is_gone(zygote_pid), "the death of the zygote")
    running.outputs()
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    assert pid_of(loaded) == pid
    assert loaded.num_deaths == 0


def test_how_a_worker_ended_is_known_without_its_zygote(
    loaded: ProcessModel, host: ProcessHost
) -> None:
    """It is this process that reaps it; the next worker is another zygote's."""
    pid, zygote_pid = pid_of(loaded), host.zygote.pid
    assert zygote_pid is not None
    os.kill(zygote_pid, signal.SIGKILL)
    until(lambda: host.zygote.pid != zygote_pid, "that its death is noticed")
    error = ask(loaded, {"x": floats((-1, 0))}, "crash").error()
    assert isinstance(error, Internal)
    assert "SIGSEGV" in error.message
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    assert not psutil.pid_exists(pid)  # not even as a zombie


def test_what_a_worker_logs_says_when_and_how_grave(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its lines stand among the server's; a model finds no logging set up."""
    # Outputs are what they were for the program of the zygote: one of this test's.
    monkeypatch.setattr(zygote, "ZygoteProcess", ZygoteProcess)
    source = package(tmp_path, TellsHandlers(), {"serving_default": signature()})
    lines: list[str] = []

    def is_told() -> bool:
        told = capfd.readouterr().err.splitlines()
        lines.extend(line for line in told if "call_failed" in line)
        return bool(lines)

    with process_host() as host:
        error = ask(host.pool().load(source), X).error()
        until(is_told, "the worker's line")
    assert "root handlers: []" in error.message
    (line,) = lines
    assert re.match(r"[\d-]{10} [\d:,]{12} W tfs\.\S+ event=call_failed ", line)


@pytest.mark.parametrize(
    ("method", "first", "how"),
    [("crash", -1, "SIGSEGV"), ("slow", 60, "a call took over")],
)
def test_a_worker_says_where_it_crashed_or_hung(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    method: str,
    first: float,
    how: str,
) -> None:
    """The author reads which lines ran, and not only how the interpreter ended."""
    # Outputs are what they were for the program of the zygote: one of this test's.
    monkeypatch.setattr(zygote, "ZygoteProcess", ZygoteProcess)
    source = package(tmp_path, Scale())
    told = ""

    def is_told() -> bool:
        nonlocal told
        told += capfd.readouterr().err
        return 'zoo.py", line' in told and f"in {method}\n" in told

    with process_host() as host:
        # On a busy machine, a crash may take longer than the time of one that hangs.
        timeout_s = 30.0 if method == "crash" else 0.2
        options = ProcessOptions(call_timeout_s=timeout_s)
        loaded = host.pool(options).load(source)
        error = ask(loaded, {"x": floats((first, 0))}, method).error()
        until(is_told, "the worker's stack")
    assert isinstance(error, Internal)
    assert how in error.message


@pytest.mark.parametrize(
    ("concurrency", "megabytes", "num_calls"), [(1, 64, 1), (16, 2, 32)]
)
def test_a_limit_is_the_models_alone(
    host: ProcessHost, tmp_path: Path, concurrency: int, megabytes: int, num_calls: int
) -> None:
    """What the worker's threads reserve of addresses, and never touch, is not counted."""
    interpreter = host.pool(
        ProcessOptions(worker=WorkerOptions(memory_limit_bytes=96 << 20))
    )
    default = {"serving_default": signature()}
    source = package(tmp_path, Hoarder(), default, concurrency=concurrency)
    loaded = interpreter.load(source)
    for _ in range(num_calls):
        answer = ask(loaded, {"x": floats((megabytes, 0))}).outputs()["y"]
        assert values(answer) == [[megabytes, 0]]
    assert isinstance(ask(loaded, {"x": floats((256, 0))}).outcome(), Internal)
    assert loaded.num_deaths == 0


def test_a_leak_ends_one_interpreter_which_comes_back(
    host: ProcessHost, tmp_path: Path
) -> None:
    """The call that finds no memory says so, the next one is answered by a new worker."""
    interpreter = host.pool(
        ProcessOptions(worker=WorkerOptions(memory_limit_bytes=256 << 20))
    )
    loaded = interpreter.load(
        package(tmp_path, Leaks(), {"serving_default": signature()}, name="leaks")
    )
    pid = pid_of(loaded)
    for _ in range(10):
        outcome = ask(loaded, {"x": floats((60, 0))}).outcome()
        if isinstance(outcome, ServingError):
            break
    assert isinstance(outcome, Internal)
    assert "leaks/1" in outcome.message
    assert "--worker_memory_limit_bytes" in outcome.message
    assert values(ask(loaded, {"x": floats((60, 0))}).outputs()["y"]) == [[60, 0]]
    assert pid_of(loaded) != pid
    assert loaded.num_deaths == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_worker_can_run_without_privileges(host: ProcessHost, tmp_path: Path) -> None:
    """It becomes another user at lower priority, and still loads and dies with us."""
    nobody = 65534
    interpreter = host.pool(
        ProcessOptions(worker=WorkerOptions(nice=5, user_id=nobody, group_id=nobody))
    )
    loaded = interpreter.load(package(tmp_path, Scale()))
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    worker = psutil.Process(pid_of(loaded))
    assert worker.nice() == min(19, psutil.Process().nice() + 5)
    assert set(worker.uids()) == {nobody}
    assert set(worker.gids()) == {nobody}
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: loaded.num_deaths == 1, "the death")
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]


@pytest.mark.parametrize("spin_us", [0, 200])
def test_many_short_calls_keep_their_order_and_rows(
    host: ProcessHost, tmp_path: Path, spin_us: int
) -> None:
    """Two calls may lie in the slab at once; each answer is its own."""
    interpreter = host.pool(
        ProcessOptions(worker=WorkerOptions(spin_us=spin_us), max_queued=1000)
    )
    loaded = interpreter.load(package(tmp_path, Scale()))
    answers = [ask(loaded, {"x": floats((value, 1))}) for value in range(500)]
    for value, answer in enumerate(answers):
        assert values(answer.outputs()["y"]) == [[2 * value, 2]]


def test_calls_behind_a_crash_are_not_lost(host: ProcessHost, tmp_path: Path) -> None:
    """A call that lay in the slab and had not begun is run by the next worker."""
    interpreter = host.pool(ProcessOptions(max_queued=1000))
    loaded = interpreter.load(package(tmp_path, Scale()))
    for _ in range(20):
        ask(loaded, X, "crash").outputs()  # so that two may lie in the slab
    answers = [ask(loaded, X, "crash") for _ in range(10)]
    crash = ask(loaded, {"x": floats((-1, 0))}, "crash")
    answers += [ask(loaded, X, "crash") for _ in range(10)]
    assert isinstance(crash.error(), Internal)
    for answer in answers:
        assert values(answer.outputs()["y"]) == [[2, 4]]


def test_closing_mid_call_answers_unavailable(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Past its deadline close no longer waits for a call."""
    interpreter = host.pool()
    loaded = interpreter.load(package(tmp_path, Scale()))
    running = ask(loaded, {"x": floats((60, 0))}, "slow")
    interpreter.close(time.monotonic() + 0.1)
    assert isinstance(running.error(), Unavailable)
    token = CancelToken()
    token.cancel(Cancelled("gone"))
    assert isinstance(ask(loaded, X, cancel=token).error(), Unavailable)


@pytest.mark.parametrize(("is_urgent", "added"), [(False, 19), (True, 0)])
def test_loads_make_way_unless_they_are_urgent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_urgent: bool, added: int
) -> None:
    """While a server starts there is nobody to make way for, but other programs."""
    (tmp_path / "servable.py").write_text(
        "import os, threading\n"
        "NICE = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())\n"
        "class Servable:\n"
        "    def predict(self, x):\n"
        "        return x * 0 + NICE\n"
    )
    source = ModelSource(
        id=ServableId("nice", 1),
        path=str(tmp_path),
        platform="python",
        entry={},
        signatures={"serving_default": signature()},
    )
    # Loads of other tests make way for nobody.
    monkeypatch.setattr(thread_priority, "LOWEST", 19)
    with process_host() as host:
        interpreter = host.pool(ProcessOptions(is_urgent=lambda: is_urgent))
        loaded = interpreter.load(source)
        (row,) = values(ask(loaded, X).outputs()["y"])
    nice = min(19, psutil.Process().nice() + added)
    assert row == [nice, nice]


@pytest.mark.parametrize("is_closed", [False, True])
def test_many_strings_are_packed_and_unpacked_off_the_loop(
    host: ProcessHost, tmp_path: Path, is_closed: bool
) -> None:
    """A million take half a second; an executor that ends leaves it to who is there."""
    executor = ThreadExecutor(1, "packs")
    interpreter = host.pool(ProcessOptions(executor=executor))
    loaded = interpreter.load(package(tmp_path, Shout(), SHOUT_SIGNATURES))
    if is_closed:
        executor.close()
    num = 20_000
    text = TensorView(STRING, (num,), (b"a", b"bc") * (num // 2))
    answer = ask(loaded, {"text": text})
    outputs = answer.outputs()
    assert outputs["loud"] == TensorView(STRING, (num,), (b"A", b"BC") * (num // 2))
    assert answer.thread_name.startswith("packs") is not is_closed
    assert loaded.num_pending == 0
    executor.close()


def test_many_bytes_are_copied_off_the_loop(host: ProcessHost, tmp_path: Path) -> None:
    """Sixty megabytes took a round of .4 s; what was copied is closed again."""
    executor = ThreadExecutor(1, "copies")
    interpreter = host.pool(ProcessOptions(executor=executor))
    wide = TensorSpec(FLOAT32, (-1, 1 << 20))
    source = package(
        tmp_path, Scale(), {"serving_default": signature({"y": wide}, {"x": wide})}
    )
    loaded = interpreter.load(source)
    rows = torch.arange(5 << 20, dtype=torch.float32).view(5, -1)
    large = TensorView(FLOAT32, (5, 1 << 20), rows.numpy().tobytes())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        answer = ask(loaded, {"x": large})
        assert answer.outputs()["y"].data == (rows * 2).numpy().tobytes()
        assert answer.thread_name.startswith("copies")
    assert loaded.num_pending == 0
    executor.close()
    assert len(os.listdir("/proc/self/fd")) == before
