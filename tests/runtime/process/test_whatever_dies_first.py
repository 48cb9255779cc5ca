"""No process needs another but the server, and with the server all of them end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from tests.runtime.process_host import is_gone, until
from tests.runtime.zoo import Scale

pytestmark = pytest.mark.timeout(900)  # many processes, some of which import torch

ROOT = Path(__file__).resolve().parents[3]
ROLES = ("zygote", "worker", "graph worker")
PATIENCE_S = 300.0
"""For imports of seconds on a machine that is loaded."""
FAIL_CALLS = {"worker", "graph worker"}
"""With whom calls end."""


class Family:
    """A server in a program of its own, and its processes."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self.program = program
        self.seen: set[int] = set()

    def ask(self, what: str) -> object:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        print(what, file=self.program.stdin, flush=True)
        return json.loads(self.program.stdout.readline())

    def pids(self) -> dict[str, int]:
        """Returns the processes by role, once there is one of each."""
        limit_s = time.monotonic() + PATIENCE_S
        pause = threading.Event()
        while True:
            found = self.ask("pids")
            assert isinstance(found, dict)
            self.seen.update(pid for pid in found.values() if pid is not None)
            missing = [role for role, pid in found.items() if pid is None]
            if not missing:
                return found
            assert time.monotonic() < limit_s, f"not in time: {missing}"
            pause.wait(0.01)

    def kill(self, *roles: str) -> None:
        """Kills them, and checks that nobody else ends and that calls are answered."""
        before, answers = self.pids(), self.ask("ask")
        for role in roles:
            os.kill(before[role], signal.SIGKILL)
        for role in roles:
            until(lambda pid=before[role]: is_gone(pid), f"the death of {role}")  # type: ignore[misc]
        if not FAIL_CALLS & {*roles}:
            assert self.ask("ask") == answers
        ended = {*roles}

        def changed() -> set[str]:
            after = self.pids()
            return {role for role in before if before[role] != after[role]}

        until(lambda: ended <= changed(), f"all that follows {roles}")
        assert changed() == ended
        assert self.ask("ask") == answers

    def assert_nothing_is_left(self) -> None:
        """After the server was killed."""
        self.program.wait()
        for pid in self.seen:
            until(lambda pid=pid: is_gone(pid), "the end of the orphans")  # type: ignore[misc]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that doubles its input, as a graph."""
    folder = tmp_path_factory.mktemp("graph")
    program = torch.export.export(
        Scale().eval(),
        (torch.ones(2, 2),),
        dynamic_shapes=({0: torch.export.Dim("n")},),
    )
    torch.export.save(program, folder / "model.pt2")
    return folder


@pytest.fixture
def family(tmp_path: Path, graph: Path) -> Iterator[Family]:
    program_name = "tests.runtime.process.family_host"
    with subprocess.Popen(
        [sys.executable, "-m", program_name, str(tmp_path), str(graph)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as program:
        try:
            yield Family(program)
        finally:
            program.kill()


def test_only_the_servers_end_ends_the_others(family: Family) -> None:
    """Each process is killed in turn: the others stay, it is replaced, calls go on."""
    for role in ROLES:
        family.kill(role)
    family.program.kill()
    family.assert_nothing_is_left()


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_two_deaths_at_once_end_nobody_else(family: Family) -> None:
    """Each two of all kinds."""
    for pair in itertools.combinations(ROLES, 2):
        family.kill(*pair)
    family.program.kill()
    family.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("dies_before", "stubborn"),
    [
        pytest.param(*case, marks=() if index < 2 else pytest.mark.stress)
        for index, case in enumerate(
            itertools.chain(
                (("zygote", "stubborn"), ("nobody", "bare"), ("zygote", "lasting")),
                (("nobody", "stubborn"), ("zygote", "bare"), ("nobody", "lasting")),
                itertools.product(ROLES[1:], ("stubborn", "bare", "lasting")),
            )
        )
    ],
)
def test_nothing_outlives_a_server_that_is_killed(
    family: Family, dies_before: str, stubborn: str
) -> None:
    """Even models that keep Python's lock, or close everything, end with the server."""
    pids = family.pids()
    family.ask(stubborn)
    worker = psutil.Process(pids["stubborn worker"])

    def is_under_way() -> bool:
        if stubborn != "bare":
            return any(each.name() == "sleep" for each in worker.children())
        return len(os.listdir(f"/proc/{worker.pid}/fd")) <= 3

    until(is_under_way, "the call")
    family.seen.update(each.pid for each in worker.children(recursive=True))
    if dies_before != "nobody":
        os.kill(pids[dies_before], signal.SIGKILL)
    server = psutil.Process(family.program.pid)
    family.seen.update(each.pid for each in server.children(recursive=True))
    family.program.kill()
    family.assert_nothing_is_left()
