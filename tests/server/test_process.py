"""tfs.server.process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import cast

import pytest

from tfs.cli.main import main
from tfs.cli.serving import serve
from tfs.core.clock import MonotonicClock
from tfs.core.errors import (
    Cancelled,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
)
from tfs.core.event_bus import EventAndTime, EventBus
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.config.server_config import read_config_text
from tfs.server.model_server import ModelServer
from tfs.server.options import ServerOptions
from tfs.server.process import Announcer, _drain, first_config
from tfs.server.system.signal_inbox import LOOK, SignalInbox
from tfs.testing.fake_clock import FakeClock

SCALE = ServableId("scale", 1)


def lines_for(*states: ServableState) -> list[str]:
    lines: list[str] = []
    bus: EventBus[ServableState] = EventBus(FakeClock())
    subscription = bus.subscribe(Announcer(lines.append).take)
    for state in states:
        bus.publish(state)
    subscription.close()
    return lines


def test_a_note_is_no_second_announcement() -> None:
    """What is found out about a version later does not make it available again."""
    assert lines_for(
        ServableState(SCALE, ManagerState.LOADING),
        ServableState(SCALE, ManagerState.LOADING, note="it hangs"),
        ServableState(SCALE, ManagerState.AVAILABLE),
        ServableState(SCALE, ManagerState.AVAILABLE, note="runs in front"),
    ) == ["tfs: loading scale/1", "tfs: scale/1 is available after 0.0 s"]


def test_how_long_a_load_took_is_announced() -> None:
    """Who waits for a model learns what to expect of the next one."""
    lines: list[str] = []
    announcer = Announcer(lines.append)
    announcer.take(EventAndTime(ServableState(SCALE, ManagerState.LOADING), 100.0))
    announcer.take(EventAndTime(ServableState(SCALE, ManagerState.AVAILABLE), 103.72))
    assert lines[1] == "tfs: scale/1 is available after 3.7 s"


def test_a_version_that_cannot_be_loaded_is_announced_with_the_reason() -> None:
    """Who only looks at the terminal sees it; a load that was given up is no failure."""
    damaged, given_up = DataLoss("model.pt is damaged"), Cancelled("not wanted")
    assert lines_for(
        ServableState(SCALE, ManagerState.LOADING),
        ServableState(SCALE, ManagerState.END, error=damaged),
        ServableState(SCALE, ManagerState.END, error=given_up),
        ServableState(SCALE, ManagerState.END),
        ServableState(SCALE, ManagerState.LOADING),
        ServableState(SCALE, ManagerState.AVAILABLE, error=damaged),
    ) == [
        "tfs: loading scale/1",
        "tfs: scale/1 cannot be loaded: DATA_LOSS: model.pt is damaged",
        "tfs: loading scale/1",
        "tfs: scale/1 is available after 0.0 s, but fails: DATA_LOSS: model.pt is damaged",
    ]


def test_what_is_wrong_with_a_base_path_is_announced_once() -> None:
    """A directory that does not exist is a typing error that nobody reads a log for."""
    lines: list[str] = []
    announcer = Announcer(lines.append)
    missing = {"digits": ("no such directory: /models/digit",)}
    for problems in (missing, missing, {}, missing):
        announcer.take_problems(problems)
    assert lines == ["tfs: digits: no such directory: /models/digit"] * 2


def test_a_version_that_comes_back_is_announced_again() -> None:
    """Unloading and loading once more is news."""
    assert (
        lines_for(
            ServableState(SCALE, ManagerState.AVAILABLE),
            ServableState(SCALE, ManagerState.UNLOADING),
            ServableState(SCALE, ManagerState.AVAILABLE),
        )
        == ["tfs: scale/1 is available"] * 2
    )


def test_a_quarantined_version_is_not_called_available() -> None:
    """A version that stays loaded but refuses requests says why."""
    fault = FailedPrecondition("crashed 3 times")
    assert lines_for(
        ServableState(SCALE, ManagerState.AVAILABLE),
        ServableState(SCALE, ManagerState.AVAILABLE, error=fault),
    ) == [
        "tfs: scale/1 is available",
        "tfs: scale/1 fails: FAILED_PRECONDITION: crashed 3 times",
    ]


class _Hanging:
    """A server with a call that never ends; notes when it was to be done."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.deadlines_s: list[float] = []

    def drain(self, deadline_s: float) -> bool:
        self.deadlines_s.append(deadline_s)
        self.clock.advance(deadline_s - self.clock.now())
        return False

    def close(self, deadline_s: float) -> None:
        self.deadlines_s.append(deadline_s)


def test_a_call_that_hangs_costs_the_drain_timeout_once() -> None:
    """Closing gets what draining left of the time, and a few seconds at least."""
    clock = FakeClock()
    server = _Hanging(clock)
    begun_s = clock.now()
    with SignalInbox() as inbox:
        assert _drain(cast(ModelServer, server), None, clock, 30.0, inbox) == 1
    assert [each - begun_s for each in server.deadlines_s] == [30.0, 32.0]


class _Answered(_Hanging):
    """A server whose calls were all answered; what computes does so for nobody."""

    def drain(self, deadline_s: float) -> bool:
        self.deadlines_s.append(deadline_s)
        return True


def test_a_call_that_nobody_waits_for_keeps_a_server_for_seconds() -> None:
    """Where every caller has an answer the end does not wait for the drain timeout."""
    clock = FakeClock()
    server = _Answered(clock)
    begun_s = clock.now()
    with SignalInbox() as inbox:
        assert _drain(cast(ModelServer, server), None, clock, 30.0, inbox) == 0
    assert [each - begun_s for each in server.deadlines_s] == [30.0, 5.0]


def test_a_hang_up_ends_neither_a_server_nor_its_drain() -> None:
    """Whoever closes a terminal, or asks for a look, does not cut calls off."""
    with SignalInbox() as inbox:
        inbox.hear_unless_ignored(LOOK)
        signal.raise_signal(signal.SIGHUP)
        assert inbox.receive() == "SIGHUP"
        signal.raise_signal(signal.SIGHUP)
        clock = FakeClock()
        server = _Answered(clock)
        assert _drain(cast(ModelServer, server), None, clock, 30.0, inbox) == 0


def test_a_hang_up_that_is_ignored_stays_so() -> None:
    """That is what nohup is for."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalInbox() as inbox:
            inbox.hear_unless_ignored(LOOK)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
            inbox.notify()
            assert inbox.receive() == ""
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_hang_up_during_the_start_waits_until_somebody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever writes a config and asks for a look does not end a server that starts."""
    before = signal.getsignal(signal.SIGHUP)
    received: list[str] = []

    def start(arguments: object, inbox: SignalInbox, say: object) -> int:
        signal.raise_signal(signal.SIGHUP)
        inbox.hear(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        received.extend((inbox.receive(), inbox.receive()))
        return 0

    monkeypatch.setattr(serve, "_serve", start)
    assert main(["serve"]) == 0
    assert received == ["SIGHUP", "SIGTERM"]
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_pipe_is_no_config_file(tmp_path: Path) -> None:
    """A start says what is wrong rather than wait for somebody to write."""
    os.mkfifo(tmp_path / "models.config")
    for path, words in ((tmp_path / "models.config", "regular"), (tmp_path, "regular")):
        options = ServerOptions(any_port=True, model_config_file=str(path))
        with pytest.raises(FailedPrecondition, match=words):
            first_config(options)
    options = ServerOptions(any_port=True, model_config_file="/absent")
    with pytest.raises(FailedPrecondition, match="No such file"):
        first_config(options)


@pytest.mark.parametrize("flag", ["model_base_path", "model_repository"])
def test_a_relative_path_is_refused_at_the_start(flag: str) -> None:
    """A server that ran on would serve nothing, for good; the message has the whole path."""
    options = ServerOptions(any_port=True, **{flag: "models"})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as caught:
        first_config(options)
    assert caught.value.message == (
        f"--{flag} must be an absolute path or a URL: models; here that is "
        f"{os.path.abspath('models')}"
    )
    for path in ("/models", "s3://bucket/models"):
        first_config(ServerOptions(any_port=True, **{flag: path}))  # type: ignore[arg-type]


def test_a_config_that_is_refused_costs_no_patience() -> None:
    """The end of a start waits for nothing that never ran."""
    config = read_config_text(
        'model_config_list { config { name: "a" base_path: "/m" '
        'model_platform: "onnx" } }',
        "a test",
    )
    clock = MonotonicClock()
    options = ServerOptions(any_port=True, model_config_file="/models.config")
    server = ModelServer(options, clock)
    with pytest.raises(InvalidArgument, match="onnx"):
        server.start(config)
    begun_s = clock.now()
    server.close(begun_s + 60)
    assert clock.now() - begun_s < 5  # each of its waits is longer


def test_malloc_is_told_before_there_is_a_second_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that had a heap of its own leaves it to those that come later."""
    begun: list[str] = []
    monkeypatch.setattr(serve, "apply_settings", lambda: begun.append("settings"))

    def start_one() -> None:
        begun.append("threads")
        raise FailedPrecondition("no more")

    monkeypatch.setattr(serve, "ZygoteProcess", start_one)
    monkeypatch.setattr(serve, "_loads_at_start", lambda _: True)
    assert main(("serve", "--model_base_path=/models/x")) == 1
    assert begun == ["settings", "threads"]


def test_a_server_without_threads_says_which_limit_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with what to raise, and no traceback."""
    words = ("serve", "--model_base_path=/models/x", "--load_probe_budget_s=0")

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(serve, "thread_limits", lambda: "the limit is 12")
    monkeypatch.setattr("tfs.server.process.run_server", refuse)
    assert main((*words, "--interpreter_backend=inline")) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert "no thread or process can be started any more: the limit is 12" in told


def test_a_signal_to_a_fork_ends_the_fork_alone() -> None:
    """A model that ends its own pool of processes by SIGTERM does not end the server."""
    with SignalInbox() as inbox:
        inbox.hear(signal.SIGTERM)
        pid = os.fork()
        if pid == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)  # it was not ended
        _, status = os.waitpid(pid, 0)
        inbox.notify()
        received = inbox.receive()
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert received == ""
