"""What a long-running program does when nobody takes what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from tests.e2e.serving import QUICK
from tfs.cli.standard_streams import say
from tfs.testing.patience import PATIENCE_S

_OPENS_MISSING = """
import os
from tfs.cli.standard_streams import open_missing_streams
os.closerange(0, 3)
open_missing_streams()
assert [os.fstat(fd).st_rdev for fd in range(3)] == [os.stat(os.devnull).st_rdev] * 3
assert os.open(os.devnull, os.O_RDONLY) > 2
"""


def test_a_line_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """A path of any bytes is printed as it is."""
    say("tfs: serving m from /models/\udcff")
    out, _ = capfd.readouterr()
    assert out.startswith("tfs: serving m from /models/")


def test_a_full_disk_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be printed is lost, and does not come back when Python ends."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        say("tfs: stopped")


def test_a_reader_that_has_gone_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program at the other end of a pipe may end before the server."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        say("tfs: stopped")


def test_no_stdout_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has none if the parent has closed it."""
    monkeypatch.setattr(sys, "stdout", None)
    say("tfs: stopped")


def test_numbers_of_missing_streams_are_taken() -> None:
    """What libraries print must not go into a socket that got the number of stderr."""
    subprocess.run([sys.executable, "-c", _OPENS_MISSING], check=True)


def test_a_server_whose_lines_nobody_takes_serves_and_drains(tmp_path: Path) -> None:
    """A full disk under its outputs neither keeps it from starting nor from draining."""
    socket = tmp_path / "tfs.sock"
    flags = (
        "--port=0",
        f"--grpc_socket_path={socket}",
        f"--model_repository={tmp_path}",
    )
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "tfs", "serve", *QUICK, *flags],
            stdout=full,
            stderr=full,
        )
    try:
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
