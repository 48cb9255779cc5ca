"""What a long-running program does when nobody takes what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.e2e.serving import QUICK
from tests.full_pipe import fill
from tests.python_program import output_of
from tfs.testing.patience import PATIENCE_S

_OPENS_MISSING = """
import os
from tfs.server.system.process_settings import open_missing_streams
os.closerange(0, 3)
open_missing_streams()
assert [os.fstat(fd).st_rdev for fd in range(3)] == [os.stat(os.devnull).st_rdev] * 3
assert os.open(os.devnull, os.O_RDONLY) > 2
"""


def test_numbers_of_missing_streams_are_taken() -> None:
    """What libraries print must not go into a socket that got the number of stderr."""
    output_of("-c", _OPENS_MISSING)


@pytest.fixture(params=["full disk", "nobody reads", "reader gone"])
def output(request: pytest.FixtureRequest) -> Iterator[int]:
    """A file that takes nothing."""
    if request.param == "full disk":
        files = [os.open("/dev/full", os.O_WRONLY)]
    else:
        files = list(os.pipe())
        if request.param == "nobody reads":
            fill(files[1])
        else:
            os.close(files.pop(0))
    yield files[-1]
    for fd in files:
        os.close(fd)


def test_a_server_whose_lines_nobody_takes_serves_and_drains(
    output: int, tmp_path: Path
) -> None:
    """Neither starting, nor serving, nor draining waits for a reader."""
    socket = tmp_path / "tfs.sock"
    flags = (
        "--port=0",
        f"--grpc_socket_path={socket}",
        f"--model_repository={tmp_path}",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tfs", "serve", *QUICK, *flags],
        stdout=output,
        stderr=output,
    )
    try:
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
