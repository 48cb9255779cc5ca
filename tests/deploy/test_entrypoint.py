"""The container's entry point, with a fake `tfs` on the path."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

SCRIPT = ROOT / "deploy/tfs_serving_entrypoint.sh"
COMMAND = ROOT / "deploy/tensorflow_model_server"

FAKE_TFS = """#!/bin/sh
echo "pid $$"
for argument in "$@"; do echo "$argument"; done
exit 3
"""


@pytest.fixture
def bin_path(tmp_path: Path) -> Path:
    """A folder whose `tfs` prints its pid and its arguments and exits with 3."""
    fake = tmp_path / "tfs"
    fake.write_text(FAKE_TFS)
    fake.chmod(0o755)
    return tmp_path


def run(bin_path: Path, *arguments: str, **env: str) -> tuple[int, int, list[str]]:
    """Returns the script's pid, its exit status and what the fake `tfs` printed."""
    return run_script(SCRIPT, bin_path, *arguments, **env)


def run_script(
    script: Path, bin_path: Path, *arguments: str, **env: str
) -> tuple[int, int, list[str]]:
    process = subprocess.Popen(
        [str(script), *arguments],
        env={"PATH": f"{bin_path}:/usr/bin:/bin", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate(timeout=200)
    return process.pid, process.returncode, out.splitlines()


def test_variables_name_the_model_and_its_base_path(bin_path: Path) -> None:
    """MODEL_NAME and MODEL_BASE_PATH mean what they mean in TensorFlow Serving."""
    env = {"MODEL_NAME": "digits", "MODEL_BASE_PATH": "/models"}
    _, _, printed = run(bin_path, **env)
    assert printed[1:] == [
        "serve",
        "--port=8500",
        "--rest_api_port=8501",
        "--drain_wait_s=5",
        "--model_name=digits",
        "--model_base_path=/models/digits",
    ]


def test_further_arguments_arrive_unchanged_and_last(bin_path: Path) -> None:
    """Arguments of `docker run` are flags that may override ours, blanks included."""
    env = {"MODEL_NAME": "a b", "MODEL_BASE_PATH": "/models"}
    _, _, printed = run(bin_path, "--port=9000", "--ssl_config_file=/x y", **env)
    assert printed[5] == "--model_name=a b"
    assert printed[-2:] == ["--port=9000", "--ssl_config_file=/x y"]


def test_the_server_replaces_the_shell(bin_path: Path) -> None:
    """Signals and the exit status are the server's own, so that SIGTERM drains."""
    env = {"MODEL_NAME": "digits", "MODEL_BASE_PATH": "/models"}
    pid, status, printed = run(bin_path, **env)
    assert printed[0] == f"pid {pid}"
    assert status == 3


def test_a_missing_variable_starts_nothing(bin_path: Path) -> None:
    """Without the image's defaults the script fails instead of serving `/`."""
    _, status, printed = run(bin_path, MODEL_NAME="digits")
    assert status != 0
    assert printed == []


def test_tensorflow_servings_command_serves(bin_path: Path) -> None:
    """Manifests that name it start unchanged, their flags as they are."""
    flags = ("--port=8500", "--rest_api_port=8501", "--model_base_path=/models/a b")
    pid, status, printed = run_script(COMMAND, bin_path, *flags)
    assert printed == [f"pid {pid}", "serve", *flags]
    assert status == 3
