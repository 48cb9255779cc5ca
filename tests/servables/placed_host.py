"""A server's share in placing versions: interpreters by backend, profiles and notes."""

from __future__ import annotations

from pathlib import Path

from tfs.core.errors import ServingError
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.interpreter import Interpreter
from tfs.runtime.placement import Backend, PlacementOptions
from tfs.servables.measuring.probe import ProbeOptions
from tfs.servables.measuring.profiler import Profiler, Profiles
from tfs.servables.platform import LeaveFront, LoadContext
from tfs.servables.registry import default_registry
from tfs.servables.version_loader import VersionLoader


class Host:
    """Interpreters by backend: threads stand in for processes, but for crashes."""

    def __init__(self, *, budget_s: float = 0.0) -> None:
        self.interpreters: dict[Backend, Interpreter] = {}
        self.cache = Profiles()
        self.profiler = Profiler(self.cache, ProbeOptions(budget_s, largest_batch=2))
        self.batched: list[tuple[Backend, bool]] = []
        self.notes: list[str] = []
        self.notes_of_loads: list[str] = []
        self.leave_front: LeaveFront | None = None
        self.is_slow_at_once = False
        self.refuse: ServingError | None = None
        self.is_covered = False
        self.gates_examples = True
        self.call_s = 30.0
        self.replayed: list[tuple[ServableId, str]] = []
        self.replay_error: ServingError | None = None
        self.faults: list[tuple[ServableId, str, bool]] = []
        self._warm_up_s = budget_s

    def of(self, backend: Backend) -> Interpreter:
        if self.refuse is not None and backend is not Backend.PROCESS:
            raise self.refuse
        if backend not in self.interpreters:
            self.interpreters[backend] = InlineInterpreter(backend.value)
        return self.interpreters[backend]

    def batch(
        self, inner: Servable, path: str, profile: ModelProfile | None, backend: Backend
    ) -> Servable:
        self.batched.append((backend, profile is not None))
        return inner

    def watch_front(self, _: ServableId, leave: LeaveFront) -> None:
        self.leave_front = leave
        if self.is_slow_at_once:
            leave(0.02)

    def _note(self, _: object, note: str, __: int | None, is_loading: bool) -> None:
        self.notes.append(note)
        if is_loading:
            self.notes_of_loads.append(note)

    def loader(self, path: Path) -> VersionLoader:
        context = LoadContext(
            self.of,
            profiler=self.profiler,
            placement=PlacementOptions(),
            batch=self.batch,
            gates_examples=self.gates_examples,
            warm_up_s=self._warm_up_s,
            call_s=self.call_s,
            replay=self.replay,
            note=self._note,
            fault=lambda of, error, loading: self.faults.append(
                (of, error.message, loading)
            ),
            is_covered=lambda _: self.is_covered,
            on_front=self.watch_front,
        )
        return default_registry().loader(str(path), context)  # type: ignore[return-value]

    def replay(self, servable: Servable, path: str) -> None:
        self.replayed.append((servable.id, path))
        if self.replay_error is not None:
            raise self.replay_error

    def num_models(self, backend: Backend) -> int:
        interpreter = self.interpreters.get(backend)
        return 0 if interpreter is None else interpreter.num_models

    def close(self) -> None:
        for interpreter in self.interpreters.values():
            interpreter.close(None)
