"""Compares this tree's server with that of an earlier commit.

    make compare
    python -m tests.compare [--commit 31fdb5fc] [--folder DIR] [--only answers]

Unpacks the commit from git into a temporary folder; the same Python runs both, with one
tree or the other in front. Each tree writes the models. Then three servers are asked the
same, each with copies of the models and of a state directory that the old server has
left: the old one, the new one, and the new one with the models that it wrote itself.
Prints each line that differs and that allowed.py does not list, and exits with 1 if
there is one. Not part of the suite: it needs the commit.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from tests.compare.allowed import ALLOWED
from tests.compare.requests import Request, requests
from tests.compare.scenario import Server, answers, calls, environment, operations
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

ROOT: Final = Path(__file__).resolve().parents[2]
ORACLE: Final = "31fdb5fc"
_MAX_LINES_SHOWN: Final = 12


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compares this tree's server with that of an earlier commit."
    )
    parser.add_argument("--commit", default=ORACLE, help="the earlier commit")
    parser.add_argument("--folder", type=Path, help="keep everything here")
    parser.add_argument(
        "--only", choices=("answers", "operations"), help="half of what is asked"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tfs-compare-") as scratch:
        folder = (arguments.folder or Path(scratch)).resolve()
        return compare(arguments.commit, folder, arguments.only or "")


def compare(commit: str, folder: Path, only: str) -> int:
    """Returns 1 if the servers differ otherwise than allowed."""
    old = folder / "tree"
    _unpack(commit, old)
    for name, tree in (("old", old), ("new", ROOT)):
        _say(f"exporting the models by the {name} tree")
        (folder / f"models-{name}").mkdir()
        command = [sys.executable, "-m", "tests.compare.models"]
        subprocess.run(
            [*command, str(folder / f"models-{name}")],
            cwd=tree,
            env=environment(tree),
            check=True,
        )
    _say("having the old server measure, and leave its state")
    _prime(old, folder)
    asked = [] if only == "operations" else requests()
    seen = {
        name: _observe(tree, folder, name, written, asked, only)
        for name, tree, written in (
            ("old", old, "old"),
            ("new", ROOT, "old"),
            ("new, own models", ROOT, "new"),
        )
    }
    (folder / "observed.json").write_text(json.dumps(seen, indent=1))
    wrong = sum(_judge(name, seen["old"], seen[name]) for name in list(seen)[1:])
    _say(f"{wrong} observations differ" if wrong else "equal but for what is allowed")
    return 1 if wrong else 0


def _say(line: str) -> None:
    print(f"compare: {line}", flush=True)


def _unpack(commit: str, tree: Path) -> None:
    """Writes the commit's files, and this program beside them."""
    _say(f"unpacking {commit}")
    tree.mkdir(parents=True)
    packed = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(tree)], input=packed.stdout, check=True)
    shutil.copytree(Path(__file__).parent, tree / "tests" / "compare")


def _prime(tree: Path, folder: Path) -> None:
    """Has the old server leave profiles and an override in a state directory."""
    models = shutil.copytree(folder / "models-old", folder / "prime" / "models")
    server = Server(tree, models, folder / "state", folder / "prime.log")
    try:
        with calls(server, {}) as (caller, _):
            back = pb.RollbackRequest(model="digits", version=1)
            _say(caller.admin("Rollback", back).splitlines()[0])
    finally:
        server.stop()


def _observe(
    tree: Path, folder: Path, name: str, written: str, asked: list[Request], only: str
) -> dict[str, str]:
    """Runs a server and returns all that was observed of it."""
    _say(f"asking {name}")
    run = folder / name.replace(", ", "-").replace(" ", "-")
    models = shutil.copytree(folder / f"models-{written}", run / "models")
    state = shutil.copytree(folder / "state", run / "state")
    server = Server(tree, models, state, run / "log")
    seen: dict[str, str] = {}
    try:
        names = {str(state): "$STATE", str(tree): "$TREE"}
        if asked:
            seen |= answers(server, names, asked)
        if only != "answers" and written == "old":
            seen |= operations(server, names)
    finally:
        server.stop()
    return seen


def _judge(name: str, old: dict[str, str], new: dict[str, str]) -> int:
    """Prints what differs and is not allowed; returns how many observations do."""
    wrong, used = 0, Counter[str]()
    for where, said in new.items():
        lines = []
        for line in difflib.ndiff(old[where].splitlines(), said.splitlines()):
            if line[0] not in "+-":
                continue
            by = next((each for each in ALLOWED if each.covers(where, line)), None)
            if by is None:
                lines.append(line)
            else:
                used[by.reason] += 1
        if lines:
            wrong += 1
            print(f"--- {name}: {where}")
            print("\n".join(f"    {line[:300]}" for line in lines[:_MAX_LINES_SHOWN]))
    _say(f"{name}: {len(new)} observations, {wrong} differ otherwise than allowed")
    for reason, count in used.items():
        print(f"    {count} lines allowed: {reason}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
