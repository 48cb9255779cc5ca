"""The dlmopen backend of a server: a fixed number of private CPythons.

Versions share them, because a CPython cannot be given back. Each version is loaded on
as many as it asks for, beginning with those that have the fewest models.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tfs.core.clock import Clock
from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, Tensors
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.dlmopen import dlmopen_probe
from tfs.runtime.dlmopen.dlmopen_interpreter import DlmopenInterpreter
from tfs.runtime.guest.layered.auto import AutoStatus
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.interpreter import OnAnotherThread


class DlmopenBackend:
    """Owns the interpreters. Thread-safe.

    Args:
        num_interpreters: Most interpreters; each is made when something is loaded on
            it.
        max_queued: Most calls that may wait for one.
        clock: The clock of deadlines.
        call_timeout_s: How long loads and unloads wait for a call that does not end.

    """

    def __init__(
        self,
        num_interpreters: int,
        *,
        max_queued: int = 256,
        clock: Clock | None = None,
        call_timeout_s: float | None = None,
    ) -> None:
        self._interpreters = tuple(
            DlmopenInterpreter(
                f"dlmopen-{index}",
                max_queued=max_queued,
                clock=clock,
                call_timeout_s=call_timeout_s,
            )
            for index in range(num_interpreters)
        )

    def group(self, num_interpreters: int = 0) -> DlmopenGroup:
        """Returns ``num_interpreters`` interpreters for one version; all of them if 0."""
        by_load = sorted(self._interpreters, key=lambda each: each.num_models)
        num = min(num_interpreters, len(by_load)) or len(by_load)
        return DlmopenGroup(by_load[:num], len(self._interpreters))

    def close(self, deadline_s: float | None = None) -> None:
        """Ends the use of all interpreters; the process keeps their memory. Blocks."""
        for interpreter in self._interpreters:
            interpreter.close(deadline_s)


class DlmopenGroup:
    """Interpreters that load the same versions, from one copy of their bytes.

    Thread-safe. Implements :class:`~tfs.runtime.interpreter.Interpreter`, except that
    the order of tasks holds only per interpreter. ``close`` leaves the interpreters to
    their backend.
    """

    def __init__(
        self, interpreters: Sequence[DlmopenInterpreter], num_in_process: int
    ) -> None:
        self._interpreters = tuple(interpreters)
        self._num_in_process = num_in_process
        self._models: list[DlmopenGroupModel] = []

    def load(self, source: ModelSource) -> DlmopenGroupModel:
        """Loads a version on every interpreter. Blocks, the first time for seconds.

        Raises:
            FailedPrecondition: The host cannot run this backend; the message says why.
            ServingError: The version does not load; nothing is left of it.

        """
        dlmopen_probe.require(self._num_in_process)
        group = DlmopenGroupModel(source)
        files = VersionFiles.stage(source)
        try:
            for each in self._interpreters:
                group.members.append((each, each.load(source, files)))
        except BaseException:
            group.unload()
            raise
        finally:
            files.close()
        self._models.append(group)
        return group

    @property
    def num_models(self) -> int:
        return self._interpreters[0].num_models

    def close(self, deadline_s: float | None = None) -> None:
        """Unloads everything that was loaded here."""
        while True:
            try:
                model = self._models.pop()
            except IndexError:  # another thread may have taken the last one
                return
            model.unload()


class DlmopenGroupModel(OnAnotherThread):
    """A version on each interpreter of a group. Thread-safe.

    Implements :class:`~tfs.runtime.interpreter.InterpreterModel`, except that the order
    of tasks holds per interpreter only. It is measured by its first interpreter, since
    all are alike.

    Attributes:
        source: The version.
        members: Each interpreter, and the version there; only its group adds some.
        pid: The server's own process.
        staged_status: None: it is computed whole.

    """

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.members: list[tuple[DlmopenInterpreter, InlineModel]] = []
        self.pid = os.getpid()
        self.staged_status: AutoStatus | None = None

    @property
    def loaded(self) -> ModelProfile:
        """What loading it took in the first interpreter."""
        return self.members[0][1].loaded

    @property
    def last_call_s(self) -> float | None:
        """Seconds of the first interpreter's last call; an idle group uses that one."""
        return self.members[0][1].last_call_s

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Returns None: no placement by measurement ever chooses this backend."""
        return None

    def rehearse(self, signature_name: str, inputs: Tensors, timeout_s: float) -> None:
        """Calls nothing: each of its threads pays for a first call of its own."""

    def seed(self, seed: int | None) -> bool:
        """Seeds each interpreter's random numbers; see ``InterpreterModel``."""
        seeded = [model.seed(seed) for _, model in self.members]
        return all(seeded)

    def submit(self, task: InferenceTask) -> None:
        """Hands the task to the interpreter with the fewest calls before it."""
        _, model = min(self.members, key=lambda member: member[0].thread.num_pending)
        model.submit(task)

    def unload(self) -> None:
        failed: ServingError | None = None
        for _, model in self.members:
            try:
                model.unload()
            except ServingError as error:  # it hangs, but the others do not
                failed = error
        if failed is not None:
            raise failed
