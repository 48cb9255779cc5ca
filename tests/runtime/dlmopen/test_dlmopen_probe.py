"""The probe says no, and why, before anything can crash."""

from __future__ import annotations

import functools
import platform
import re
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfs.core.errors import FailedPrecondition
from tfs.runtime.dlmopen import dlmopen_namespace, dlmopen_probe


@pytest.fixture(autouse=True)
def _asks_anew() -> Iterator[None]:
    """What a test makes the probe believe is forgotten after it."""
    before = dlmopen_probe._refusal
    dlmopen_probe._refusal = before.__wrapped__  # type: ignore[assignment]
    yield
    dlmopen_probe._refusal = before


def answer(
    monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: str = "", stderr: str = ""
) -> None:
    """Makes the test end so, on a host that lacks nothing."""
    monkeypatch.setattr(dlmopen_probe, "lacking", lambda: "")
    done = subprocess.CompletedProcess([], returncode, stdout, stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)


@pytest.mark.parametrize(
    ("libc", "words"),
    [
        (("", ""), "needs glibc"),
        (("musl", "1.2"), "needs glibc"),
        (("glibc", "2.31"), "needs glibc 2.34, this is 2.31"),
    ],
)
def test_another_c_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, libc: tuple[str, str], words: str
) -> None:
    """musl has no link namespaces; older glibc keeps its threads elsewhere."""
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert words in dlmopen_probe.refusal(1)


def test_a_static_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libpython there is nothing to load again; the reason says what to do."""
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(dlmopen_probe, "find_libpython", lambda: None)
    with pytest.raises(FailedPrecondition, match=r"no shared libpython.*--enable-shar"):
        dlmopen_probe.require(1)


TRIALS = {
    "a crash": (-11, "", "one\nlast words\n", r"SIGSEGV.*last words"),
    "a crash after the answer": (-6, 'dlmopen-probe: ""\n', "", "SIGABRT"),
    "too little room": (0, 'noise\ndlmopen-probe: "no room"\nnoise\n', "", "^no room$"),
    "nothing lacks": (0, 'dlmopen-probe: ""\n', "", "^$"),
    "no answer": (0, "", "", "exited with 0"),
}


@pytest.mark.parametrize("trial", TRIALS)
def test_what_a_trial_comes_to_is_told(
    trial: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kills it, or says nothing, would have failed the server as well."""
    returncode, stdout, stderr, words = TRIALS[trial]
    answer(monkeypatch, returncode, stdout, stderr)
    assert re.search(words, dlmopen_probe.refusal(2), re.DOTALL)


def test_a_trial_that_hangs_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, and the server says so."""

    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(dlmopen_probe, "lacking", lambda: "")
    monkeypatch.setattr(subprocess, "run", hang)
    assert "hung" in dlmopen_probe.refusal(2)


def test_the_library_found_is_this_python_s() -> None:
    """Another version beside it would be of no use."""
    path = dlmopen_namespace.find_libpython()
    if path is None:
        pytest.skip("this Python has no shared library")
    assert f"libpython3.{sys.version_info[1]}" in path


def test_the_library_is_found_whatever_sysconfig_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads that ask sysconfig for the first time at once may be told nothing."""
    path = dlmopen_namespace.find_libpython()
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: None)
    assert dlmopen_namespace.find_libpython() == path


def test_versions_that_load_at_once_share_one_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A test takes seconds for each interpreter; it is made once for a number of them."""
    tests: list[int] = []
    begun, may_end = threading.Event(), threading.Event()

    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        tests.append(1)
        begun.set()
        may_end.wait(10)
        return subprocess.CompletedProcess([], 0, 'dlmopen-probe: ""\n', "")

    monkeypatch.setattr(dlmopen_probe, "lacking", lambda: "")
    monkeypatch.setattr(subprocess, "run", run)
    remembering = functools.lru_cache(dlmopen_probe._refusal)
    monkeypatch.setattr(dlmopen_probe, "_refusal", remembering)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(dlmopen_probe.refusal, 1)
        assert begun.wait(10)
        second = pool.submit(dlmopen_probe.refusal, 1)
        may_end.set()
        assert (first.result(10), second.result(10)) == ("", "")
    assert len(tests) == 1


@pytest.mark.parametrize(
    ("tunables", "num"),
    [
        ("", 6),
        ("glibc.malloc.arena_max=1", 6),
        ("glibc.rtld.nns=16", 15),
        ("glibc.malloc.arena_max=1:glibc.rtld.nns=9", 8),
        ("glibc.rtld.nns=100", 15),
        ("glibc.rtld.nns=1", 1),
    ],
)
def test_room_follows_what_the_process_was_started_with(
    monkeypatch: pytest.MonkeyPatch, tunables: str, num: int
) -> None:
    """Who names no number gets one that fits, as many cores as there may be."""
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    assert dlmopen_probe.most_interpreters() == num
