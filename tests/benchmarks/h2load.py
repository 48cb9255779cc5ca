"""Load from h2load, nghttp2's generator in C: it takes a tenth of a client's CPU.

It comes from Debian's package, unpacked with the libraries that this machine lacks
below the ignored .tools/, so that neither root nor an installation is needed. h2load
sends one prepared body and looks at no reply, so `Load.check` compares what it counted
with what the right reply would have made it count.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import command

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools"
PACKAGE = "nghttp2-client"

RUN_TIMEOUT_S = 120.0
PREFIX_BYTES = 5  # of a gRPC message: compressed or not, and its size

Run = Callable[[Sequence[str], Path], str]
"""Runs a command in a folder; returns what it printed; RuntimeError if it failed."""

_DEPENDS = (
    *("apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests"),
    *("--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", PACKAGE),
)


class H2loadMissingError(RuntimeError):
    """There is no h2load and none could be had; says why and what to do."""


@dataclass(frozen=True, slots=True)
class H2load:
    """A program that runs. Immutable."""

    program: Path
    libraries: Path | None = None

    def command_environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        if self.libraries is not None:
            environment["LD_LIBRARY_PATH"] = str(self.libraries)
        return environment


@dataclass(frozen=True, slots=True)
class Load:
    """What h2load counted, and how long the answers took.

    Attributes:
        num_asked: requests it was to send.
        num_done: those answered with an HTTP status of 2xx.
        num_answered: those answered at all: h2load knows no status of a reply that
            has no reason phrase, as some HTTP/1.1 servers send.
        num_data_bytes: of all answers, headers and trailers apart.
        duration_s: from the first request to the last answer.
        latencies_us: of every request, unordered.
    """

    num_asked: int
    num_done: int
    num_answered: int
    num_data_bytes: int
    duration_s: float
    latencies_us: tuple[int, ...]

    @property
    def rate_per_s(self) -> float:
        return self.num_done / self.duration_s

    def latency_us(self, quantile: float) -> float:
        ordered = sorted(self.latencies_us)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]

    def check(self, reply_bytes: int, prefix_bytes: int = PREFIX_BYTES) -> None:
        """Every request was answered, and with as many bytes as the right reply has.

        An error is a reply without a message, so it shows here too. Outside gRPC
        nothing stands before a reply: `prefix_bytes` is 0.

        Raises:
            ValueError: It was not; says what came instead.
        """
        expected_bytes = self.num_asked * (reply_bytes + prefix_bytes)
        if self.num_done != self.num_asked or self.num_data_bytes != expected_bytes:
            raise ValueError(
                f"{self.num_done} of {self.num_asked} requests done, "
                f"{self.num_data_bytes} bytes of replies, not {expected_bytes}"
            )


def run(
    h2load: H2load,
    target: str,
    method: str,
    body: bytes,
    *,
    num_requests: int,
    num_in_flight: int,
    is_tls: bool = False,
    timeout_s: float = RUN_TIMEOUT_S,
) -> Load:
    """Sends `body` that often over one connection, as gRPC; blocks until all is answered.

    It runs on the cores of the calling thread.

    Raises:
        RuntimeError: h2load failed or took too long.
    """
    return send(
        h2load,
        f"{'https' if is_tls else 'http'}://{target}{method}",
        b"\0" + struct.pack(">I", len(body)) + body,
        ["content-type: application/grpc", "te: trailers"],
        num_requests=num_requests,
        num_streams=num_in_flight,
        timeout_s=timeout_s,
    )


def send(
    h2load: H2load,
    url: str,
    content: bytes,
    headers: Sequence[str],
    *,
    num_requests: int,
    num_connections: int = 1,
    num_streams: int = 1,
    is_http1: bool = False,
    timeout_s: float = RUN_TIMEOUT_S,
) -> Load:
    """Posts `content` that often to any HTTP server, as `run` does to a gRPC one.

    HTTP/2 without negotiation, or HTTP/1.1, where more than one stream would be
    pipelined requests.

    Raises:
        RuntimeError: h2load failed or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        message = Path(folder) / "message"
        message.write_bytes(content)
        log = Path(folder) / "log"
        command = [
            *(str(h2load.program), f"--clients={num_connections}"),
            *(f"--requests={num_requests}", f"--data={message}"),
            f"--max-concurrent-streams={num_streams}",
            # Windows of 16 and 64 MB, as gRPC's clients come to after a while.
            *("--window-bits=24", "--connection-window-bits=26"),
            *(["--h1"] if is_http1 else []),
            *(f"--header={header}" for header in headers),
            *(f"--log-file={log}", url),
        ]
        try:
            result = subprocess.run(
                command,
                env=h2load.command_environment(),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"h2load sent {num_requests} requests to {url} and was not done "
                f"after {timeout_s:g} s"
            ) from None
        if result.returncode != 0:
            raise RuntimeError(f"h2load failed: {result.stdout}{result.stderr}")
        return parse(result.stdout, log.read_text())


def parse(output: str, log: str) -> Load:
    """Reads h2load's report and its log (start, status, microseconds per request).

    Raises:
        ValueError: It is not one.
    """
    requests = re.search(
        r"requests: (\d+) total.* (\d+) done.* (\d+) succeeded", output
    )
    traffic = re.search(r"traffic: .*\((\d+)\) data", output)
    finished = re.search(r"finished in ([\d.]+)(us|ms|s|m),", output)
    if requests is None or traffic is None or finished is None:
        raise ValueError(f"not h2load's report: {output}")
    unit_s = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[finished[2]]
    return Load(
        num_asked=int(requests[1]),
        num_done=int(requests[3]),
        num_answered=int(requests[2]),
        num_data_bytes=int(traffic[1]),
        duration_s=float(finished[1]) * unit_s,
        latencies_us=tuple(int(line.split("\t")[2]) for line in log.splitlines()),
    )


def find(tools: Path = TOOLS) -> H2load:
    """Returns an installed h2load, else one unpacked below `tools`; makes it so.

    Raises:
        H2loadMissingError: There is none, and none can be had here.
    """
    installed = shutil.which("h2load")
    if installed is not None:
        return H2load(Path(installed))
    return unpack(tools / "h2load")


def unpack(folder: Path, run_command: Run | None = None) -> H2load:
    """Unpacks the package and the libraries that are not installed into `folder`.

    It is there whole or not at all.

    Raises:
        H2loadMissingError: A tool is missing, or a download failed.
    """
    run_command = run_command or command.run_command
    if not folder.is_dir():
        print(f"==> unpacking {PACKAGE} into {folder}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        for tool in ("apt-get", "apt-cache", "dpkg", "dpkg-query"):
            if shutil.which(tool) is None:
                raise H2loadMissingError(
                    f"h2load is missing and so is {tool}, which would get it: "
                    "install nghttp2's client (the program h2load) and put it on PATH"
                )
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            draft = Path(scratch) / "h2load"
            draft.mkdir()
            try:
                _download_into(draft, run_command)
            except RuntimeError as error:
                raise H2loadMissingError(
                    f"h2load is missing and {PACKAGE} could not be had ({error}): "
                    f"install it, for example with 'apt-get install {PACKAGE}'"
                ) from error
            draft.rename(folder)
    libraries = sorted(folder.glob("usr/lib/*-linux-gnu*"))
    return H2load(folder / "usr/bin/h2load", libraries[0] if libraries else None)


def _download_into(folder: Path, run_command: Run) -> None:
    """Downloads what is needed and unpacks it into `folder`."""
    options: list[str] = []
    packages = folder / "packages"
    packages.mkdir()
    try:
        names = _missing_packages(options, packages, run_command)
        run_command(["apt-get", "download", *names], packages)
    except RuntimeError:
        # No package lists, or old ones: fresh ones, of our own, since those of the
        # machine are root's.
        state, cache = packages / "state", packages / "cache"
        for path in (state / "lists" / "partial", cache / "archives" / "partial"):
            path.mkdir(parents=True)
        options = ["-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}"]
        options += ["-o", "Dir::State::status=/var/lib/dpkg/status"]
        run_command(["apt-get", *options, "update"], packages)
        names = _missing_packages(options, packages, run_command)
        run_command(["apt-get", *options, "download", *names], packages)
    for archive in sorted(packages.glob("*.deb")):
        run_command(["dpkg", "-x", str(archive), str(folder)], packages)
    shutil.rmtree(packages)


def _missing_packages(
    options: Sequence[str], folder: Path, run_command: Run
) -> list[str]:
    """Returns the package and what it depends on, without what is installed."""
    depends = run_command([_DEPENDS[0], *options, *_DEPENDS[1:]], folder)
    needed = [line for line in depends.splitlines() if re.match(r"[a-z0-9]", line)]
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n"]
    installed = {
        line.split()[0]
        for line in run_command(query, folder).splitlines()
        if line.endswith(" installed")
    }
    names = [name for name in needed if name.partition(":")[0] not in installed]
    return names or [PACKAGE]
