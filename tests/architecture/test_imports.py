"""The import contracts of pyproject.toml, on the tree and on planted violations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

PACKAGES = ("tfs", "sources", "managers", "batching")

# A planted import, and the contract that must notice it.
VIOLATIONS = [
    ("tfs/core/clock.py", "import tfs.handlers.predict", "knowledge points down"),
    ("sources/static.py", "import managers.basic", "knowledge points down"),
    (
        "tfs/handlers/predict.py",
        "import tfs.server.core",
        "knowledge points down",
    ),
    ("tfs/oddments/stuff.py", "", "every tfs subpackage has a layer"),
    (
        "managers/basic.py",
        "import numpy",
        "the core, sources, managers and batching are plain Python",
    ),
    (
        "tfs/core/clock.py",
        "from tfs.proto import pool",
        "the core, sources, managers and batching are plain Python",
    ),
    (
        "tfs/runtime/pool.py",
        "import grpc",
        "what runs beside user code never loads the RPC stack",
    ),
    (
        "tfs/runtime/guest/platforms/python.py",
        "import tfs.runtime.pool",
        "an interpreter's guest knows the core and torch only",
    ),
    (
        "tfs/runtime/guest/platforms/python.py",
        "import numpy",
        "an interpreter's guest knows the core and torch only",
    ),
    (
        "tfs/handlers/predict.py",
        "import torch",
        "torch stays in runtime and export",
    ),
    (
        "tfs/servables/platform.py",
        "import torch",
        "torch stays in runtime and export",
    ),
    (
        "tfs/codec/tensor.py",
        "import grpc",
        "handlers, servables, codec and export do not speak gRPC",
    ),
    (
        "tfs/export/save.py",
        "import grpc",
        "handlers, servables, codec and export do not speak gRPC",
    ),
    (
        "tfs/frontends/http2/frames.py",
        "import tfs.handlers.predict",
        "front ends know calls, and nothing that answers them",
    ),
    (
        "tfs/frontends/grpcio/transport.py",
        "import tfs.frontends.express.transport",
        "the transports do not know each other",
    ),
    (
        "tfs/frontends/http2/connection.py",
        "import socket",
        "the HTTP/2 protocol knows neither sockets nor threads nor the loop",
    ),
    (
        "tfs/frontends/http2/frames.py",
        "import tfs.core.clock",
        "the HTTP/2 protocol knows neither sockets nor threads nor the loop",
    ),
    (
        "managers/basic.py",
        "import tfs.testing.fake_clock",
        "production never imports the test doubles",
    ),
    (
        "managers/first.py",
        "import managers.second.part",
        "siblings form no import cycle",
    ),
    ("tfs/__init__.py", "import tfs.core", "tfs/__init__.py imports nothing"),
]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-logo",
        "--no-cache",
    ]
    return subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def plant(root: Path, name: str, text: str) -> None:
    """Writes a module, and the packages above it where they are missing."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in path.relative_to(root).parents:
        if folder != Path() and not (root / folder / "__init__.py").exists():
            (root / folder / "__init__.py").write_text("")
    path.write_text(text + "\n")


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """A tree with every room and no import, under the project's own contracts."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for package in PACKAGES:
        plant(tmp_path, f"{package}/__init__.py", "")
    for module in (
        "tfs/core/clock.py",
        "tfs/core/executor.py",
        "tfs/core/loop/serving_loop.py",
        "tfs/__main__.py",
        "tfs/cli/main.py",
        "tfs/client/client.py",
        "tfs/handlers/predict.py",
        "tfs/hosted/fleet.py",
        "tfs/servables/platform.py",
        "tfs/server/core.py",
        "tfs/proto/pool.py",
        "tfs/runtime/pool.py",
        "tfs/runtime/guest/platforms/python.py",
        "tfs/codec/tensor.py",
        "tfs/export/save.py",
        "tfs/frontends/http2/frames.py",
        "tfs/frontends/http2/connection.py",
        "tfs/frontends/express/transport.py",
        "tfs/frontends/grpcio/transport.py",
        "tfs/testing/fake_clock.py",
        "managers/basic.py",
    ):
        plant(tmp_path, module, "")
    plant(tmp_path, "managers/second/part.py", "import managers.first")
    return tmp_path


def test_the_tree_keeps_every_contract() -> None:
    """Knowledge points down in the committed tree."""
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_tree_without_violations_passes(skeleton: Path) -> None:
    """The skeleton the violations are planted in is clean itself."""
    result = lint(skeleton)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("module", "line", "contract"), VIOLATIONS)
def test_a_planted_violation_breaks_its_contract(
    skeleton: Path, module: str, line: str, contract: str
) -> None:
    """Each contract notices the import it exists for."""
    plant(skeleton, module, line)
    result = lint(skeleton)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contract} BROKEN" in " ".join(result.stdout.split())
