"""One client of several servers, one of which restarts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from tests.e2e.serving import Serving, export_scale, free_port
from tfs.client import AsyncClient, Client, RetryPolicy
from tfs.core.errors import Unavailable
from tfs.testing.patience import PATIENCE_S

X = [[1.0, 2.0]]
NO_RETRY = RetryPolicy(max_attempts=1)


def serving(base_path: Path, port: int) -> Serving:
    """Returns a server that is found at the same address after a restart."""
    return Serving(
        "--model_name=scale",
        f"--model_base_path={base_path}",
        "--noany_port",
        f"--port={port}",
    )


def answers(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except Unavailable:
        return False
    return True


def test_a_balanced_client_loses_no_call_while_servers_restart(tmp_path: Path) -> None:
    """It sends none where nothing is loaded yet, though the port is open, or where it ends.

    The versions tell the two servers apart.
    """
    ports = free_port(), free_port()
    bases = tmp_path / "one", tmp_path / "two"
    for base in bases:
        base.mkdir()
    export_scale(bases[0], 1)
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    with (
        serving(bases[0], ports[0]) as one,
        serving(bases[1], ports[1]) as two,
        Client(target, timeout_s=PATIENCE_S, retry=NO_RETRY, balanced=True) as client,
    ):

        def ask() -> int | None:
            return client.predict("scale", {"x": X}).version

        one.wait_for("scale/1 is available")
        while not answers(ask):  # the servers' health turns just after that line
            pass
        assert {ask() for _ in range(40)} == {1}
        export_scale(bases[1], 2)
        two.wait_for("scale/2 is available")
        while ask() != 2:
            pass
        assert {ask() for _ in range(40)} == {1, 2}

        async def ask_async() -> set[int | None]:
            async with AsyncClient(target, retry=NO_RETRY, balanced=True) as each:
                answers = [await each.predict("scale", {"x": X}) for _ in range(2)]
                while len({answer.version for answer in answers}) < 2:
                    answers.append(await each.predict("scale", {"x": X}))
                return {answer.version for answer in answers}

        assert asyncio.run(ask_async()) == {1, 2}
        one.process.send_signal(signal.SIGTERM)
        while one.process.poll() is None:
            ask()
        assert {ask() for _ in range(40)} == {2}
        with serving(bases[0], ports[0]):
            while ask() != 1:
                pass
