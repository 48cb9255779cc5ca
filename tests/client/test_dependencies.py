"""What has to be installed for tfs.client and for the commands that use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT

_ASK = """
import sys
import {module}
if "{module}" == "tfs.cli.main":
    tfs.cli.main.make_parser()  # of all commands
names = {{name.partition(".")[0] for name in sys.modules}}
print(*names & {{"torch", "hpack", "watchdog", "google_crc32c", "fsspec"}})
"""


@pytest.mark.parametrize("module", ["tfs.client", "tfs.cli.main"])
def test_what_only_calls_needs_no_more_than_the_page_says(module: str) -> None:
    """docs/client.md installs numpy, grpcio and protobuf, and for commands little else."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK.format(module=module)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
