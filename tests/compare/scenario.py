"""What is done with each server: every request, operations, the command line."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import text_format

from tests.compare import models
from tests.compare.allowed import IGNORED_FIELDS
from tests.compare.observed import Caller, Text
from tests.compare.requests import Request
from tfs.proto._pool import POOL
from tfs.proto.tensorflow_serving.apis import model_management_pb2
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

START_TIMEOUT_S: Final = 180
_AT_ONCE: Final = 64
_RELOAD: Final = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
_IGNORED_KEYS: Final = {field.rpartition(".")[2] for field in IGNORED_FIELDS}
_NUMBER: Final = re.compile(r"[\d.]+(e-?\d+)?")
_COMMANDS: Final = (
    "status",
    "status digits echo",
    "status --batching",
    "status --json",
    "status nobody",
    "models",
    "models damaged digits",
    "models --json",
    "metadata digits",
    "metadata echo --json",
    "metadata nobody",
    "predict digits --input x=[[1,2,3,4]]",
    "predict digits --input x=[[1,2,3,4]] --json --version 1",
    'predict lengths --input text=["one","three"]',
    'predict lengths --input text=[""]',
    'predict skus --input sku=["A1","none"] --output price',
    "predict echo --input x=[[1,2]] --label old",
    "config show",
    "config show --json",
    "config show --base",
    "canary digits 1 --tee 0.5 --dry_run",
    "promote digits 1 --dry_run",
    "rollback digits --dry_run",
    "retry damaged --dry_run",
    "reload {folder}/table.config --dry_run",
    "config validate {folder}/models.config",
)


def environment(tree: Path) -> dict[str, str]:
    """Returns what a process is given that imports a tree."""
    return {**os.environ, "PYTHONPATH": str(tree), "TFS_ADMIN_SOCKET": ""}


class Server:
    """``tfs serve`` of a tree, which ends with the context. Confined to one thread."""

    def __init__(self, tree: Path, folder: Path, state: Path, log: Path) -> None:
        self.tree, self.folder = tree, folder
        (folder / "models.config").write_text(models.config(folder))
        command = [sys.executable, "-m", "tfs", "serve", "--grpc_host=127.0.0.1"]
        command += ["--any_port", "--max_num_load_retries=0", f"--state_dir={state}"]
        command += [f"--model_config_file={folder / 'models.config'}"]
        command += ["--model_config_file_poll_wait_seconds=3600"]
        self._stderr = log.open("w")
        self._process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment(tree),
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self._found: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()
        self.address = self._found.get(timeout=START_TIMEOUT_S)
        if not self.address:
            raise RuntimeError(f"the server of {tree} ended: see {log}")

    def stop(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        self._process.terminate()
        try:
            code = self._process.wait(60)
        finally:
            self._process.kill()
            self._reader.join()
            self._stderr.close()
        return code

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"listening on (\S+:\d+)", line):
                self._found.put(found[1])
        self._found.put("")


@contextlib.contextmanager
def calls(server: Server, names: dict[str, str]) -> Iterator[tuple[Caller, Text]]:
    """Yields a caller of a server whose models have all settled."""
    text = Text({str(server.folder): "$MODELS", **names})
    with grpc.insecure_channel(server.address) as channel:
        caller = Caller(channel, text)
        caller.settle()
        yield caller, text


def answers(
    server: Server, names: dict[str, str], asked: list[Request]
) -> dict[str, str]:
    """Makes every call, one after the other, then many of the exact ones at once."""
    with calls(server, names) as (caller, _):
        seen = {each.name: caller.ask(each) for each in asked}
        exact = [each for each in asked if each.is_exact]
        for start in range(0, len(exact), _AT_ONCE):
            seen |= _at_once(caller, exact[start : start + _AT_ONCE])
    return seen


def _at_once(caller: Caller, asked: list[Request]) -> dict[str, str]:
    begun = [(each, caller.begin(each.path, each.message)) for each in asked]
    return {
        f"at once: {each.name}": caller.end(each.path, call) for each, call in begun
    }


def operations(server: Server, names: dict[str, str]) -> dict[str, str]:
    """Reads everything back, changes it in every way, and reads it again."""
    folder = server.folder
    list_all = pb.ListModelsRequest(include_stats=True)
    with calls(server, names) as (caller, text):
        seen = {
            "models": caller.admin("ListModels", list_all),
            "config": caller.admin("GetConfig", pb.GetConfigRequest()),
        }
        for words in _COMMANDS:
            seen[f"tfs {words}"] = _run(server, words, text)
        for name, method, request in _changes(folder):
            if method == _RELOAD:
                call = caller.begin(method, request.SerializeToString())
                seen[name] = caller.end(method, call)
            else:
                seen[name] = caller.admin(method, request)
            caller.settle()
            list_all = pb.ListModelsRequest(models=["digits"])
            seen[f"{name}: models"] = caller.admin("ListModels", list_all)
            seen[f"{name}: config"] = caller.admin("GetConfig", pb.GetConfigRequest())
    seen["exit"] = str(server.stop())
    return seen


def _changes(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Yields operations in order: its name, its method, its request."""
    trial = pb.SetCanaryRequest(model="digits")
    trial.canary.version = 1
    trial.canary.tee_fraction = 0.5
    yield "canary", "SetCanary", trial
    yield "promote", "Promote", pb.PromoteRequest(model="digits")
    yield "canary of the primary", "SetCanary", trial
    yield "rollback", "Rollback", pb.RollbackRequest(model="digits", version=3)
    yield "rollback ended", "Rollback", pb.RollbackRequest(model="digits", end=True)
    yield "canary ended", "SetCanary", pb.SetCanaryRequest(model="digits")
    yield "promote nothing", "Promote", pb.PromoteRequest(model="digits")
    yield "reset", "ResetOverride", pb.ResetOverrideRequest(model="digits")
    yield "reset nobody", "ResetOverride", pb.ResetOverrideRequest(model="nobody")
    yield "retry", "RetryLoad", pb.RetryLoadRequest(model="damaged")
    yield "retry digits", "RetryLoad", pb.RetryLoadRequest(model="digits")
    base = models.config(folder)
    texts = {
        "the same": base,
        "latest two": models.config(
            folder, digits=models.process("latest { num_versions: 2 }")
        ),
        "without echo": models.config(folder, echo="left out"),
        "a label of nothing": models.config(
            folder,
            digits=models.process(
                "latest {}", 'version_labels { key: "new" value: 9 }'
            ),
        ),
        "a path twice": base.replace('name: "graph"', 'name: "digits"'),
        "no path": base.replace(f'base_path: "{folder / "graph"}"', ""),
        "a relative path": base.replace(f"{folder}/graph", "graph"),
        "a path that is not there": base.replace(f"{folder}/graph", f"{folder}/none"),
        "the first again": base,
    }
    for name, written in texts.items():
        request = model_management_pb2.ReloadConfigRequest()
        text_format.Parse(written, request.config, descriptor_pool=POOL)
        apply = pb.ApplyConfigRequest(text=written, validate_only=True)
        yield f"would apply {name}", "ApplyConfig", apply
        yield f"reload {name}", _RELOAD, request
    yield "apply nonsense", "ApplyConfig", pb.ApplyConfigRequest(text="nonsense {")
    yield "apply nothing", "ApplyConfig", pb.ApplyConfigRequest()


def _run(server: Server, words: str, text: Text) -> str:
    """Runs a command of the server's own tree; returns its code and output."""
    filled = [word.format(folder=server.folder) for word in words.split()]
    if filled[:2] != ["config", "validate"]:
        filled += [f"--address={server.address}"]
    done = subprocess.run(
        [sys.executable, "-m", "tfs", *filled],
        cwd=server.tree,
        env=environment(server.tree),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = done.stdout
    if "--json" in filled and told.startswith("{"):
        told = json.dumps(_without_ignored(json.loads(told)), indent=1)
    elif "--batching" in filled:
        told = _NUMBER.sub("N", told)
    told = text.of(told + done.stderr)
    return f"exit {done.returncode}\n" + _without_columns(told)


def _without_ignored(told: Any) -> Any:
    if isinstance(told, dict):
        return {
            key: _without_ignored(value)
            for key, value in told.items()
            if key not in _IGNORED_KEYS
        }
    return [_without_ignored(each) for each in told] if isinstance(told, list) else told


def _without_columns(told: str) -> str:
    """Returns lines whose columns are as wide as in any other."""
    return re.sub(r" {2,}", "  ", re.sub(r"(?m) +$", "", told))
