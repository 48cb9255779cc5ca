"""The import contracts of pyproject.toml, on the tree and on planted violations."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.python_program import run_python

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
    command = "from importlinter.cli import lint_imports_command as lint; lint()"
    return run_python(
        *("-c", command, "--no-logo", "--no-cache"),
        cwd=root,
        PYTHONPATH=str(root),
        NO_COLOR="1",
    )


def plant(root: Path, name: str, text: str) -> None:
    """Writes a module, and the packages above it where they are missing."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in path.relative_to(root).parents:
        if folder != Path() and not (root / folder / "__init__.py").exists():
            (root / folder / "__init__.py").write_text("")
    path.write_text(text + "\n")


def build(root: Path) -> None:
    """Makes a tree with every room and no import, under the project's own contracts."""
    (root / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for package in PACKAGES:
        plant(root, f"{package}/__init__.py", "")
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
        plant(root, module, "")
    plant(root, "managers/second/part.py", "import managers.first")


def test_the_tree_keeps_every_contract() -> None:
    """Knowledge points down in the committed tree."""
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_tree_without_violations_passes(tmp_path: Path) -> None:
    """The skeleton the violations are planted in is clean itself."""
    build(tmp_path)
    result = lint(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


# Contracts that do not name the module that imports, but the package that it is in.
SHORT_NAMES = {
    "every tfs subpackage has a layer": "oddments",
    "siblings form no import cycle": ".first",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is said of a tree with every violation in it."""
    root = tmp_path_factory.mktemp("broken")
    build(root)
    lines: dict[str, str] = {}
    for module, line, _ in VIOLATIONS:
        lines[module] = lines.get(module, "") + f"{line}\n"
    for module, text in lines.items():
        plant(root, module, text)
    result = lint(root)
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize(("module", "line", "contract"), VIOLATIONS)
def test_a_planted_violation_breaks_its_contract(
    broken: str, module: str, line: str, contract: str
) -> None:
    """Each contract notices the import it exists for."""
    assert f"{contract} BROKEN" in " ".join(broken.split())
    (_, _, said) = broken.partition("Broken contracts")
    (_, _, said) = said.partition(f"\n{contract}\n---")
    (said, *_) = re.split(r"\n[^\n]+\n-{5,}\n", said)
    importer = module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    assert SHORT_NAMES.get(contract, importer) in said, line
