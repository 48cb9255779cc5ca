"""A Ray cluster of a test's own, on loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

_START = ("start", "--head", "--block", "--include-dashboard=false")


def skip_without_ray() -> None:
    """Skips the test where Ray is missing; fails it where engines are required."""
    if importlib.util.find_spec("ray") is None:
        why = "needs the extra ray"
        if os.environ.get("TFS_ENGINES") == "required":
            pytest.fail(why)
        pytest.skip(why)


@contextlib.contextmanager
def a_ray_cluster() -> Iterator[str]:
    """Runs a cluster of one node; yields its address."""
    # Ray takes 127.0.0.1 for the machine's address in the network.
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            head = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "ray"),
                    *_START,
                    "--node-ip-address=127.0.0.2",
                    f"--port={port}",
                    f"--temp-dir={folder}",
                    "--num-cpus=4",
                    "--object-store-memory=80000000",
                    "--disable-usage-stats",
                ],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.getcwd()},
            )
        try:
            yield f"127.0.0.2:{port}"
        finally:
            every = psutil.Process(head.pid).children(recursive=True)
            head.kill()
            for each in every:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            head.wait()
