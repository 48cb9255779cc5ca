"""A PostgreSQL server of a test's own, from Debian's packages, on a Unix socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
_USER = "postgres"


def postgres_lacks() -> str | None:
    """Returns what is missing to run one here; None for nothing."""
    missing = [] if _PROGRAMS else ["Debian's package postgresql"]
    try:
        import psycopg  # noqa: F401
    except ImportError:
        missing.append("the extra postgres")
    return " and ".join(missing) or None


def skip_without_postgres() -> None:
    """Skips the test where an engine is missing; fails it where engines are required."""
    missing = postgres_lacks()
    if missing:
        why = f"needs {missing}"
        if os.environ.get("TFS_ENGINES") == "required":
            pytest.fail(why)
        pytest.skip(why)


class PostgresServer:
    """Runs until ``close``. PostgreSQL refuses root, so root runs it as its own user."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tfs-pg"))
        self._as = _USER if os.getuid() == 0 else None
        if self._as:
            shutil.chown(self._folder, self._as)
        self._data = self._folder / "data"
        self._call("initdb", "-D", str(self._data), "-A", "trust", "-U", _USER)
        self.start()

    @property
    def url(self) -> str:
        """How clients reach it."""
        return f"postgresql:///postgres?host={self._folder}&user={_USER}"

    def start(self) -> None:
        """Starts it, again after ``kill``; returns when it answers."""
        flags = f"-c listen_addresses= -c unix_socket_directories={self._folder}"
        words = ("-D", str(self._data), "-l", str(self._folder / "log"), "-o", flags)
        self._call("pg_ctl", *words, "-w", "start")

    def kill(self) -> None:
        """Ends it with all its processes, as a power cut does."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        server = psutil.Process(pid)
        processes = [server, *server.children()]
        for each in processes:
            each.kill()
        psutil.wait_procs(processes)

    def close(self) -> None:
        """Ends it, and removes what it kept."""
        if (self._data / "postmaster.pid").exists():
            self._call("pg_ctl", "-D", str(self._data), "-m", "fast", "-w", "stop")
        shutil.rmtree(self._folder)

    def _call(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(_PROGRAMS[-1] / program), *words],
            user=self._as,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert not done.returncode, done.stderr.decode()
