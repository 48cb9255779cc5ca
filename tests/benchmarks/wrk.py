"""Load from wrk, a second generator for HTTP/1.1, so that no figure hangs on one program."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

RUN_TIMEOUT_S: Final = 120.0

_SCRIPT: Final = """
wrk.method = "POST"
wrk.body = [==[%s]==]
%s
function done(summary, latency, requests)
  local e = summary.errors
  local num_errors = e.connect + e.read + e.write + e.status + e.timeout
  io.write(string.format("done %%d %%d %%d %%d\\n", summary.requests, summary.bytes,
                         num_errors, latency:percentile(50)))
end
"""


@dataclass(frozen=True, slots=True)
class WrkLoad:
    """What wrk counted. Immutable.

    Attributes:
        num_done: requests answered.
        num_bytes: of all answers, heads included.
        num_errors: other statuses than 2xx and 3xx, and connections that broke.
        p50_us: half of the answers took no longer.
    """

    num_done: int
    num_bytes: int
    num_errors: int
    p50_us: float

    def check(self, reply_bytes: int) -> None:
        """Every request was answered, and with as much as the right reply has.

        Raises:
            ValueError: It was not.
        """
        if self.num_errors or self.num_bytes < self.num_done * reply_bytes:
            raise ValueError(f"not all answers were right: {self}")


def send(
    url: str,
    body: str,
    headers: Mapping[str, str],
    *,
    num_connections: int,
    duration_s: int,
) -> WrkLoad:
    """Posts a body over and over; blocks until the time is up.

    Raises:
        RuntimeError: wrk is not installed, or failed.
    """
    program = shutil.which("wrk")
    if program is None:
        raise RuntimeError(
            "wrk is missing: install it, on Debian 'apt-get install wrk'"
        )
    lines = [
        f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}"
        for name, value in headers.items()
    ]
    with TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text(_SCRIPT % (body, "\n".join(lines)))
        result = subprocess.run(
            [
                *(program, "--threads=1", f"--connections={num_connections}"),
                *(f"--duration={duration_s}s", f"--script={script}", url),
            ],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    if result.returncode != 0:
        raise RuntimeError(f"wrk failed: {result.stdout}{result.stderr}")
    return parse(result.stdout)


def parse(output: str) -> WrkLoad:
    """Reads the line that the script prints at the end.

    Raises:
        ValueError: There is none.
    """
    for line in output.splitlines():
        if line.startswith("done "):
            num_done, num_bytes, num_errors, p50_us = map(int, line.split()[1:])
            return WrkLoad(num_done, num_bytes, num_errors, p50_us)
    raise ValueError(f"not the report of wrk's script: {output}")
