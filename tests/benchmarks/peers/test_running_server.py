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
from tests.benchmarks.process_cpu import offspring, read_all

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


def test_a_server_that_heeds_no_signal_ends_with_its_children() -> None:
    """Nothing of it is left for the next comparison."""
    with make_server() as server:
        server.check()
        assert server.reply_bytes == len(server.body)
        tree = offspring(
            {server.pid}, {times.pid: times for times in read_all(Path("/proc"))}
        )
        assert len(tree) == 2
    left = {
        times.pid
        for times in read_all(Path("/proc"))
        if times.pid in tree and tree[times.pid].start == times.start
    }
    # Killed ones wait for whoever adopted them.
    alive = {
        pid
        for pid in left
        if "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    }
    assert alive == set()


def test_wrong_answers_are_found_before_anything_is_timed() -> None:
    """They are compared with torch, one by one."""
    with make_server("wrong") as server, pytest.raises(WrongReplyError, match="echo"):
        server.check()
