"""tfs.server.system.process_settings."""

from __future__ import annotations

import gc
import os
import resource
import weakref
from pathlib import Path

import pytest

from tests.python_program import run_python
from tfs.runtime.process.zygote_process import BINDING, worker_environment
from tfs.server.system.process_settings import (
    SWITCH_INTERVAL_S,
    drop_thread_binding,
    freeze_imported,
    kills_whole_group,
    raise_file_limit,
)

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 1 << 20, 65_536),
        (1024, NO_LIMIT, 65_536),
        (1024, 4096, 4096),
        (1024, 1024, 1024),
        (100_000, 1 << 20, 100_000),
        (NO_LIMIT, NO_LIMIT, 65_536),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may(
    soft: int, hard: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is raised no further than privileges allow, and is never lowered."""
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    assert raise_file_limit() == expected
    assert limits[-1] in {(soft, hard), (expected, hard)}


def test_a_sandbox_that_forbids_it_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts with what it has."""

    def forbid(kind: int, pair: tuple[int, int]) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", forbid)
    assert raise_file_limit() == 1024


@pytest.mark.parametrize(
    ("text", "kills"), [("1\n", True), ("0\n", False), ("", False)]
)
def test_a_group_that_dies_as_a_whole_is_noticed(
    tmp_path: Path, text: str, kills: bool
) -> None:
    """Kubernetes sets memory.oom.group for containers unless told otherwise."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/pod/container\n")
    folder = tmp_path / "groups" / "pod" / "container"
    folder.mkdir(parents=True)
    if text:
        (folder / "memory.oom.group").write_text(text)
    found = kills_whole_group(tmp_path / "proc", tmp_path / "groups")
    assert found is kills


@pytest.mark.parametrize("name", BINDING)
def test_a_variable_that_binds_threads_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Importing torch would confine the server, or a worker, to one core."""
    monkeypatch.setenv(name, "true")
    assert name not in worker_environment()
    drop_thread_binding()
    assert name not in os.environ
    assert name in caplog.text
    caplog.clear()
    drop_thread_binding()
    assert not caplog.text


class Node:
    """Something that can hold itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_made_before_and_after_are_handled_apart() -> None:
    """Garbage is not frozen with the rest, and later garbage is still collected."""
    before = weakref.ref(Node())
    freeze_imported()  # stays: what tests import is frozen as well
    assert before() is None
    after = weakref.ref(Node())
    gc.collect()
    assert after() is None


_SCRIPT = """
import gc, sys
from tfs.server import process

def counts(self, *args):
    print("torch" in sys.modules, gc.get_freeze_count(), len(gc.get_objects()),
          sys.getswitchinterval())

prepare = process.ModelServer.prepare
process.ModelServer.start = lambda self, config: counts(self) or []
process.ModelServer.prepare = lambda self: (prepare(self), counts(self), sys.exit())
from tfs.cli.main import main
main(["serve", "--any_port", "--model_base_path=/nowhere"])
"""


def test_a_server_leaves_its_imports_to_no_collection() -> None:
    """Nearly all objects are frozen before the first port opens; torch, which takes a
    second, is imported after that, and frozen in its turn. By then threads that compute in
    Python hand the lock over sooner than Python does.
    """
    result = run_python("-c", _SCRIPT)
    lines = [line.split() for line in result.stdout.splitlines()]
    found = [line for line in lines if line[0] in ("True", "False")]
    assert [has_torch for has_torch, *_ in found] == ["False", "True"], result.stderr
    for _, num_frozen, num_others, interval_s in found:
        assert int(num_frozen) > 20 * int(num_others)
        assert float(interval_s) == pytest.approx(SWITCH_INTERVAL_S, abs=1e-6)
