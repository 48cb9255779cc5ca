"""docs/quickstart.md and the README: their files are written, their commands run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.serving import Serving, free_port
from tests.e2e.warm_python import ROOT
from tfs.testing.patience import PATIENCE_S

PAGE = ROOT / "docs" / "quickstart.md"
_BLOCK = re.compile(r"^```(python|sh)(?: ([^\n]*))?\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A file to write, or commands to run; ``what`` is the rest of its first line."""

    language: str
    what: str
    text: str


def blocks() -> list[Block]:
    page = PAGE.read_text(encoding="utf-8")
    return [Block(*(each or "" for each in match)) for match in _BLOCK.findall(page)]


class Terminal:
    """Runs the page's commands in a folder, against a server on a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.output: list[str] = []
        tools = folder / "bin"
        tools.mkdir()
        for name, words in (("tfs", "-m tfs"), ("python", "")):
            shim = tools / name
            shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            shim.chmod(0o755)
        self._env = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def here(self, text: str) -> str:
        """Returns the text with the test's port for the default one."""
        text = text.replace(":8500", f":{self.port}")
        text = re.sub(r"^tfs serve", f"exec tfs serve --port={self.port}", text)
        where = rf"\1 --address=127.0.0.1:{self.port}"
        return re.sub(r"^(tfs (?:predict|status|rollback)\b)", where, text, flags=re.M)

    def run(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", self.here(text)],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        self.output.append(done.stdout)
        return done.stdout

    def run_until(self, text: str, wanted: str) -> None:
        """Runs the commands again and again, as a reader would."""
        give_up_s = time.monotonic() + PATIENCE_S
        while wanted not in self.run(text):
            assert time.monotonic() < give_up_s, self.output[-1]

    def start(self, text: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-euc", self.here(text)],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def test_the_page_works_from_top_to_bottom(tmp_path: Path) -> None:
    """Whoever follows the page has a model served, swapped and rolled back."""
    terminal = Terminal(tmp_path)
    serving: Serving | None = None
    try:
        for block in blocks():
            if block.language == "python":
                (tmp_path / block.what).write_text(terminal.here(block.text))
            elif block.what == "serve":
                serving = Serving.of(terminal.start(block.text))
                serving.wait_for("houses/1 is available")
            elif block.what:
                wanted = block.what.removeprefix("until ").strip('"')
                terminal.run_until(block.text, wanted)
            else:
                terminal.run(block.text)
        assert serving is not None
        serving.process.send_signal(signal.SIGINT)
        assert serving.process.wait(PATIENCE_S) == 0
    finally:
        if serving is not None:
            serving.close()
    printed = "\n".join(terminal.output)
    assert "models/houses/1" in printed
    assert "price: float32 [2, 1]" in printed
    assert re.search(r"by version 2\n", printed)
    assert printed.rstrip().endswith("by version 1")


def test_the_readmes_model_is_served(tmp_path: Path) -> None:
    """The first thing that anybody tries works as it is copied."""
    terminal = Terminal(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = text.replace("/abs/models", f"{tmp_path}/models")
    code, serve, ask = re.findall(r"^```(?:python)?\n(.*?)^```", text, re.M | re.S)[3:6]
    (tmp_path / "export.py").write_text(code)
    terminal.run("python export.py")
    http_port = str(free_port())
    server = Serving.of(terminal.start(serve.replace("8501", http_port)))
    try:
        server.wait_for("digits/1 is available")
        answers = terminal.run(ask.replace("8501", http_port))
        assert "output: float32 [1, 10]" in answers
        assert '"predictions":[[' in answers
        assert server.stop() == 0
    finally:
        server.close()
