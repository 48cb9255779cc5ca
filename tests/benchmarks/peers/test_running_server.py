"""A server of the comparison from start to end, with a server that is no peer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.benchmarks.peers.exchange import Exchange, from_bytes, to_bytes
from tests.benchmarks.peers.peer import Launch
from tests.benchmarks.peers.running_server import RunningServer, WrongReplyError
from tests.benchmarks.peers.workload import WORKLOADS
from tests.benchmarks.process_cpu import ProcessTimes, offspring, read_all
from tests.runtime.process_host import until

# Echoes after a prefix, has a child that heeds no SIGTERM, and heeds none itself.
SERVER = """
import http.server, signal, subprocess, sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal\\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode() + body)
    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("listening on 127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
"""


def make_server(prefix: str = "") -> RunningServer:
    """Returns a server that answers with what it gets, after a prefix."""
    return RunningServer(
        "echo",
        Launch([sys.executable, "-c", SERVER, prefix], r"listening on (\S+)", ""),
        Exchange("/", to_bytes, from_bytes),
        WORKLOADS["identity"],
        environment={},
        cores=os.sched_getaffinity(0),
        term_timeout_s=0.1,
    )


def tree_of(server: RunningServer) -> dict[int, ProcessTimes]:
    return offspring(
        {server.pid}, {times.pid: times for times in read_all(Path("/proc"))}
    )


def state_of(pid: int) -> str:
    """Returns the letter that /proc has for it; X if it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return stat.rpartition(")")[2].split()[0]


def alive_of(tree: dict[int, ProcessTimes]) -> set[int]:
    """Returns which of these processes run; killed ones wait for who adopted them."""
    return {
        times.pid
        for times in read_all(Path("/proc"))
        if times.pid in tree
        and tree[times.pid].start == times.start
        and state_of(times.pid) not in ("Z", "X")
    }


def test_a_server_that_heeds_no_signal_ends_with_its_children() -> None:
    """Nothing of it is left for the next comparison."""
    with make_server() as server:
        server.check()
        assert server.reply_bytes == len(server.body)
        tree = tree_of(server)
        assert len(tree) == 2
    until(lambda: not alive_of(tree), "the end of what was killed")


def test_a_paused_server_answers_when_it_goes_on() -> None:
    """All its processes stop, and lose nothing by it; one may end while stopped."""
    with make_server() as server:
        server.pause()
        until(lambda: {state_of(pid) for pid in tree_of(server)} == {"T"}, "the stop")
        server.resume()
        server.check()
        server.pause()


def test_wrong_answers_are_found_before_anything_is_timed() -> None:
    """They are compared with torch, one by one."""
    with make_server("wrong") as server, pytest.raises(WrongReplyError, match="echo"):
        server.check()
