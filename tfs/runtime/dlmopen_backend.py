"""The dlmopen backend as a server has it: a fixed number of private CPythons.

Versions share them, because a CPython cannot be given back: each version is loaded on
as many as it asks for, those with the fewest models first.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tfs.core.clock import Clock
from tfs.core.servable import InferenceTask, Tensors
from tfs.runtime import dlmopen_probe
from tfs.runtime.dlmopen_interpreter import DlmopenInterpreter, DlmopenModel
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.interpreter import InterpreterStats, LoadMemory
from tfs.runtime.model_source import ModelSource


class DlmopenBackend:
    """Owns the interpreters. Thread-safe.

    Args:
        num_interpreters: At most so many; made when something is loaded on them.
        max_queued: Calls that may wait for one.
        clock: Deadlines go by it.

    """

    def __init__(
        self,
        num_interpreters: int,
        *,
        max_queued: int = 256,
        clock: Clock | None = None,
    ) -> None:
        self._interpreters = tuple(
            DlmopenInterpreter(f"dlmopen-{index}", max_queued=max_queued, clock=clock)
            for index in range(num_interpreters)
        )

    def group(self, num_interpreters: int = 0) -> DlmopenGroup:
        """Returns the interpreters for one version: so many, or all there are."""
        num = min(num_interpreters, len(self._interpreters)) or len(self._interpreters)
        by_load = sorted(self._interpreters, key=lambda each: each.stats().num_models)
        return DlmopenGroup(by_load[:num], len(self._interpreters))

    def close(self, deadline_s: float | None = None) -> None:
        """Ends their use; their memory stays with the process. Blocks."""
        for interpreter in self._interpreters:
            interpreter.close(deadline_s)


class DlmopenGroup:
    """Interpreters that load the same versions, from one copy of their bytes.

    Thread-safe. Implements :class:`~tfs.runtime.interpreter.Interpreter`, but for the
    order of tasks, which holds per interpreter only. ``close`` leaves the interpreters
    to their backend.
    """

    def __init__(
        self, interpreters: Sequence[DlmopenInterpreter], num_in_process: int
    ) -> None:
        self._interpreters = tuple(interpreters)
        self._num_in_process = num_in_process
        # Guards the list; leaf.
        self._lock = threading.Lock()
        self._models: list[SpreadModel] = []

    @property
    def name(self) -> str:
        return "dlmopen"

    def start(self) -> None:
        for interpreter in self._interpreters:
            interpreter.start()

    def load(self, source: ModelSource) -> SpreadModel:
        """Loads a version on every interpreter. Blocks, the first time for seconds.

        Raises:
            FailedPrecondition: The host cannot run this backend; says why.
            ServingError: The version does not load; nothing is left of it.

        """
        dlmopen_probe.require(self._num_in_process)
        loaded: list[tuple[DlmopenInterpreter, DlmopenModel]] = []
        files = VersionFiles.stage(source)
        try:
            loaded.extend(
                (interpreter, interpreter.load(source, files))
                for interpreter in self._interpreters
            )
        except BaseException:
            for _, model in loaded:
                model.unload()
            raise
        finally:
            files.close()
        spread = SpreadModel(loaded)
        with self._lock:
            self._models.append(spread)
        return spread

    def stats(self) -> InterpreterStats:
        """Returns the sums; of the models, one interpreter's number."""
        each = [interpreter.stats() for interpreter in self._interpreters]
        return InterpreterStats(
            num_models=each[0].num_models,
            num_queued=sum(stats.num_queued for stats in each),
            num_calls=sum(stats.num_calls for stats in each),
            num_dropped=sum(stats.num_dropped for stats in each),
            num_failed=sum(stats.num_failed for stats in each),
            busy_s=sum(stats.busy_s for stats in each),
        )

    def close(self, deadline_s: float | None = None) -> None:
        """Unloads what was loaded here."""
        with self._lock:
            models, self._models = self._models, []
        for model in models:
            model.unload()


class SpreadModel:
    """A version on every interpreter of a group. Thread-safe.

    Implements :class:`~tfs.runtime.interpreter.InterpreterModel`, but for the order of
    tasks, and :class:`~tfs.runtime.interpreter.MeasurableModel` by its first one.
    """

    def __init__(
        self, members: Sequence[tuple[DlmopenInterpreter, DlmopenModel]]
    ) -> None:
        self._members = tuple(members)

    @property
    def members(self) -> Sequence[tuple[DlmopenInterpreter, DlmopenModel]]:
        """The version on each interpreter."""
        return self._members

    @property
    def source(self) -> ModelSource:
        return self._members[0][1].source

    @property
    def pid(self) -> int:
        """The server's own process."""
        return self._members[0][1].pid

    @property
    def import_s(self) -> float | None:
        """Seconds that importing and unpickling took."""
        return self._members[0][1].import_s

    @property
    def load_memory(self) -> LoadMemory:
        """Unknown: others allocate in this process, too."""
        return self._members[0][1].load_memory

    @property
    def last_call_s(self) -> float | None:
        """Seconds of the first interpreter's last call; an idle group uses that one."""
        return self._members[0][1].last_call_s

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Has the first interpreter measure it; see ``MeasurableModel``."""
        return self._members[0][1].two_thread_scaling(
            signature_name, inputs, duration_s
        )

    def submit(self, task: InferenceTask) -> None:
        """Hands the task to the interpreter with the fewest calls before it."""
        _, model = min(self._members, key=_num_pending)
        model.submit(task)

    def unload(self) -> None:
        for _, model in self._members:
            model.unload()


def _num_pending(member: tuple[DlmopenInterpreter, DlmopenModel]) -> int:
    return member[0].num_pending
