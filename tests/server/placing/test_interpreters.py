from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, values
from tests.runtime.zoo import Scale
from tfs.core.errors import InvalidArgument
from tfs.core.loop.serving_loop import ServingLoop
from tfs.runtime.placement import Backend
from tfs.server.options import ServerOptions
from tfs.server.placing.interpreters import Interpreters, user_of
from tfs.testing.patience import PATIENCE_S


@pytest.fixture
def loop() -> Iterator[ServingLoop]:
    loop = ServingLoop(name="interpreters-loop")
    loop.start()
    yield loop
    loop.close(time.monotonic() + PATIENCE_S)
    assert loop.num_failures == 0


def test_flags_of_workers_reach_the_process(loop: ServingLoop, tmp_path: Path) -> None:
    """Niceness, memory limit and user are those of the process that runs the model."""
    is_root = os.geteuid() == 0
    flags = ServerOptions(
        model_base_path="/models",
        worker_nice=3,
        worker_memory_limit_bytes=1 << 30,
        worker_user="12345:12346" if is_root else "",
        num_interpreters=1,
    )
    interpreters = Interpreters(
        loop,
        flags,
        on_slow=lambda _, __: None,
        on_quarantine=lambda _, __: None,
    )
    model = interpreters.of(Backend.PROCESS).load(package(tmp_path, Scale()))
    answer = ask(model, {"x": floats((1, 2))}, "pid").outputs()["y"]
    [[pid, _]] = cast("list[list[int]]", values(answer))
    own_nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(own_nice + 3, 19)
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max data size             unlimited" not in limits
    if is_root:
        status = Path(f"/proc/{pid}/status").read_text()
        assert "Uid:\t12345\t12345\t12345\t12345" in status
        assert "Gid:\t12346\t12346\t12346\t12346" in status
    interpreters.close(time.monotonic() + PATIENCE_S)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("root", (0, 0)),
        ("0", (0, 0)),
        ("12345:7", (12345, 7)),
        ("4012345", (4012345, 4012345)),
    ],
)
def test_worker_user_is_a_name_or_numbers(text: str, expected: tuple[int, int]) -> None:
    """A number needs no account; without a group it has its own."""
    assert user_of(text) == expected


def test_unknown_worker_user_is_refused() -> None:
    """A typing mistake must not leave the workers as root."""
    with pytest.raises(InvalidArgument, match="no such user"):
        user_of("nobody-of-this-name")


@pytest.mark.parametrize("value", [-1, 20])
def test_niceness_is_checked_at_the_start(value: int) -> None:
    """A flag nobody could honour stops the server, not its first worker."""
    with pytest.raises(InvalidArgument, match="--worker_nice"):
        ServerOptions(model_base_path="/models", worker_nice=value)
