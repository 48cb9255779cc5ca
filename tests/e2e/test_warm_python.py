"""What stands in for a fresh Python in most end-to-end tests behaves as one."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.e2e.serving import QUICK, fork_tfs, start_tfs
from tests.e2e.warm_python import ForkedProcess
from tfs.testing.patience import PATIENCE_S

SERVE = ("serve", "--any_port", "--model_name=m", "--model_base_path=/nowhere", *QUICK)


def test_a_fork_prints_and_ends_as_a_fresh_python_does() -> None:
    """Outputs, exit code and what comes after the end are the same."""
    words = ("serve", "--nosuch=1")
    fresh, fork = start_tfs(*words), fork_tfs(*words)
    assert isinstance(fork, ForkedProcess)
    for process in (fresh, fork):
        assert process.stdout is not None
        with process.stdout as output:
            assert output.read().startswith("tfs serve: unknown argument --nosuch=1")
        assert [process.wait(PATIENCE_S), process.poll(), process.returncode] == [2] * 3
        process.kill()  # harmless after the end


def test_a_fork_takes_signals_and_has_no_deadline_of_its_own() -> None:
    """Waiting is bounded by who waits; a signal's exit code tells the signal."""
    fork = fork_tfs(*SERVE)
    assert fork.stdout is not None
    with fork.stdout as output:
        assert any("listening on" in line for line in output)
        assert fork.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            fork.wait(0.01)
        fork.send_signal(signal.SIGKILL)
        assert fork.wait(PATIENCE_S) == -signal.SIGKILL


def test_what_a_test_puts_into_the_environment_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fork knows the environment of before: another one takes a fresh Python."""
    monkeypatch.setenv("TFS_TEST", "1")
    process = fork_tfs("--version")
    assert isinstance(process, subprocess.Popen)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output.split()[0]) == (0, "TFS")


def test_what_a_library_notes_for_itself_is_none_of_the_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compiler that ran in an earlier test does not make every start a fresh one."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/nowhere")
    process = fork_tfs("--version")
    assert isinstance(process, ForkedProcess)
    with process.stdout as output:
        assert output.read().startswith("TFS")
    assert process.wait(PATIENCE_S) == 0
