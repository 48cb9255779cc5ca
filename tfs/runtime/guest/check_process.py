"""Loads and calls a version in a process that has nothing of its author's program.

The program waits for requests and forks a process for each check, so that importing
torch is paid for once. What it runs is what a worker runs: the platform's loader and
its calls, with a worker's command line and environment. A crash ends the fork alone.

It also notes what a version reads of its process: variables and files. Both are others on
a server. Only reads by the version's own code count, not those by
libraries, except for files, which are noted by their place. Nothing of this is undone,
because the process tries one version and ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import select
import signal
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.version.manifest import Manifest
from tfs.core.version_directory import read_example, read_manifest
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.guest_model import GuestModel, load_guest_model
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.own_process import seed_random
from tfs.runtime.guest.zygote.process_tree import die_with_parent

_MAX_ERRORS: Final = 8


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An exception of the version's, in words.

    Attributes:
        kinds: Its class and the classes that this inherits from, by their full names.
        text: Its message.
        name: The module, attribute or name that it is about, if it says so.
        filename: The file that it is about, if it says so.

    """

    kinds: tuple[str, ...]
    text: str
    name: str
    filename: str


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """Why a version cannot be served.

    Attributes:
        step: "load", "call", "again" (a second load in one process) or "defaults" (a
            call without the inputs that have defaults).
        error: The error that a caller would get.
        causes: What the version raised, the outermost first.
        wants_gradients: Whether it works where gradients are computed.
        left_out: The inputs that were left out.

    """

    step: str
    error: ServingError
    causes: tuple[RaisedError, ...]
    wants_gradients: bool
    left_out: tuple[str, ...]


@dataclass(slots=True)
class CheckResult:
    """What came of a check.

    Attributes:
        outputs: By signature that has an example, the outputs for it.
        failure: Why the version cannot be served; None if it can.
        failed_others: By signature that has no example, why it failed on that of
            ``serving_default``.
        variables: Environment variables that its code read.
        files: Files outside of the version that were read.

    """

    outputs: dict[str, Tensors] = field(default_factory=dict)
    failure: CheckFailure | None = None
    failed_others: dict[str, str] = field(default_factory=dict)
    variables: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def main(socket_fd: int) -> None:
    """Serves checks until the other end of the socket is closed."""
    channel = socket.socket(fileno=socket_fd)
    while (message := control_channel.receive(channel)) is not None:
        request = json.loads(message[0])
        importlib.import_module(f"tfs.runtime.guest.platforms.{request['platform']}")
        gc.freeze()
        program_pid = os.getpid()
        pid = os.fork()
        if not pid:
            die_with_parent(program_pid)
            channel.close()
            _run(request)
        status = _status_of(pid, socket_fd)
        if status is None:
            return  # nobody waits for it any more
        control_channel.send(channel, str(status).encode())


def _status_of(pid: int, socket_fd: int) -> int | None:
    """Waits for a fork; kills it and returns None if the author's program ends."""
    pidfd = os.pidfd_open(pid)
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    waiting.register(socket_fd, 0)  # hanging up is always told
    is_over = pidfd in dict(waiting.poll())
    os.close(pidfd)
    if not is_over:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)  # what the model started
    return os.waitstatus_to_exitcode(status) if is_over else None


def _run(request: Mapping[str, Any]) -> None:
    os.setpgid(0, 0)
    result = CheckResult()
    try:
        os.chdir(request["working_folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None  # it may have been asked for before the fork
        sys.path[:] = request["import_path"]
        # Projects that are installed for editing may be found by a hook.
        sys.meta_path[:] = [
            each
            for each in sys.meta_path
            if not str(getattr(each, "__module__", "")).startswith("__editable__")
        ]
        for name, value in request["settings"].items():
            getattr(torch, name)(value)
        manifest = read_manifest(request["folder"])
        reads = WatchedReads(request["folder"])
        _try(request["folder"], manifest, request["device"], result)
        result.variables = sorted(reads.variables)
        result.files = sorted(reads.files)
        with open(request["result"], "wb") as file:
            pickle.dump(result, file)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _try(folder: str, manifest: Manifest, device: str, result: CheckResult) -> None:
    """Calls each signature on a model that was just loaded, and loads it once more."""
    source = ModelSource(
        ServableId("export", 0),
        folder,
        manifest.platform,
        manifest.entry,
        manifest.signatures,
        device,
    )
    step = "load"
    wants_gradients = False
    left_out: tuple[str, ...] = ()
    try:
        for key, signature in manifest.signatures.items():
            if not signature.examples:
                continue
            step, left_out = "load", ()
            with closing(_loaded(source)) as model:
                step = "call"
                given = read_example(folder, signature)
                try:
                    result.outputs[key] = _call(model, key, given)
                    if key == DEFAULT_SIGNATURE:
                        _try_others(model, manifest, given, result)
                    defaults = signature.defaults
                    left_out = tuple(n for n in defaults if given[n] != defaults[n])
                    if left_out:
                        step = "defaults"
                        given = {**given, **defaults}
                        _call(model, key, given)
                except ServingError:
                    wants_gradients = _works_with_gradients(model, key, given)
                    raise
        if not result.outputs or manifest.platform == "torch_package":
            step = "again" if result.outputs else "load"
            _loaded(source).close()
    except ServingError as error:
        result.failure = CheckFailure(
            step, error, tuple(_causes(error)), wants_gradients, left_out
        )


def _loaded(source: ModelSource) -> GuestModel:
    with closing(VersionFiles.stage(source)) as files:
        return load_guest_model(source, files)


def _call(model: GuestModel, key: str, inputs: Tensors) -> Tensors:
    with torch.inference_mode():
        seed_random(0)
        return {n: view.owned() for n, view in model.call(key, inputs).items()}


def _works_with_gradients(model: GuestModel, key: str, inputs: Tensors) -> bool:
    with suppress(ServingError), torch.enable_grad():
        seed_random(0)
        model.call(key, inputs)
        return True
    return False


def _try_others(
    model: GuestModel, manifest: Manifest, example: Tensors, result: CheckResult
) -> None:
    """Calls the signatures without an example that take this one."""
    for key, signature in manifest.signatures.items():
        if signature.examples:
            continue
        given = signature.with_defaults(example)
        try:
            signature.check_inputs(given)
        except InvalidArgument:
            continue  # it takes other inputs
        try:
            _call(model, key, given)
        except ServingError as error:
            result.failed_others[key] = error.message


def _causes(error: BaseException) -> Iterator[RaisedError]:
    each = error.__cause__ or error.__context__
    for _ in range(_MAX_ERRORS):
        if each is None:
            return
        kinds = [k for k in type(each).__mro__ if k not in (object, BaseException)]
        yield RaisedError(
            tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds),
            str(each),
            str(getattr(each, "name", None) or ""),
            str(getattr(each, "filename", None) or ""),
        )
        each = each.__cause__ or each.__context__


_OWN_CODE: Final = ("<torch_package_", "tfs_servable_")
"""Prefixes of the names of modules that were loaded from a version."""

_ON_THE_WAY: Final = frozenset({"os", "collections.abc", "_collections_abc", __name__})


class WatchedReads:
    """What was read since it was made. For one process, and one version.

    Attributes:
        variables: Names of environment variables.
        files: Absolute paths that are neither in the version nor on every server.

    """

    def __init__(self, folder: str) -> None:
        self.variables: set[str] = set()
        self.files: set[str] = set()
        self._everywhere = tuple(
            os.path.join(os.path.abspath(place), "")
            for place in (
                folder,
                tempfile.gettempdir(),
                sys.prefix,
                sys.base_prefix,
                *filter(None, map(sysconfig.get_path, ("stdlib", "purelib"))),
                *("/dev", "/etc", "/lib", "/proc", "/sys", "/usr", "/var"),
            )
        )
        self._watch_variables()
        sys.addaudithook(self._audit)

    def _watch_variables(self) -> None:
        kind: Any = type(os.environ)
        plain = kind.__getitem__

        def read(environment: object, name: object) -> object:
            if isinstance(name, str) and _is_own_code(sys._getframe(1)):
                self.variables.add(name)
            return plain(environment, name)

        kind.__getitem__ = read

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(args[2], int):
            return
        path = os.fsdecode(args[0]) if isinstance(args[0], bytes) else args[0]
        if (
            isinstance(path, str)
            and os.path.isabs(path)
            and args[2] & os.O_ACCMODE == os.O_RDONLY
            and not path.startswith(self._everywhere)
            and not path.endswith((".py", ".pyc"))
            and os.path.isfile(path)
        ):
            self.files.add(path)


def _is_own_code(frame: Any) -> bool:
    """Whether a version's code reads, by itself or through Python's own modules."""
    while frame.f_back is not None and _name_of(frame) in _ON_THE_WAY:
        frame = frame.f_back
    return _name_of(frame).startswith(_OWN_CODE)


def _name_of(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))
