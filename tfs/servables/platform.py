"""What a platform does: it recognizes, describes and loads one kind of version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ServingError
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.interpreter import Interpreter
from tfs.runtime.placement import Backend, PlacementOptions
from tfs.servables.measuring.profiler import Profiler
from tfs.servables.version_files import VersionDescription

LeaveFront: TypeAlias = Callable[[float], None]
"""Takes the seconds of the call that was too slow for the serving loop."""

Batch: TypeAlias = Callable[[Servable, str, "ModelProfile | None", Backend], Servable]
"""Puts queues in front of a servable, given its directory, its profile and its backend.
Returns it unchanged if nothing may be batched."""


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What a server gives every loader. Immutable.

    Attributes:
        interpreter_for: Returns the interpreter of a backend; called during the load, on a
            manager thread. It may start one.
        device: "cpu" or "cuda[:i]".
        intra_op_threads: Threads one call may use inside torch.
        profiler: Measures versions after their load, from which estimates learn; None
            measures nothing.
        placement: The placement asked for; None has a version run where it is loaded
            first.
        batch: Puts batch queues in front of a version.
        gates_examples: Whether the load of a version that fails on its own example, or
            ends its process at every call of a signature, fails if another one answers.
        warm_up_s: Longest warm-up derived from examples; 0 for none, and no example is
            tried then.
        call_s: How long a call with a version's own example may take.
        replay: Replays what a version brings to be warmed up with, given its directory;
            raises if it cannot answer that.
        note: Adds a sentence to a version's state, and its memory if that is known;
            told whether the version is still being loaded.
        fault: Shows a fault of a version that serves all the same; told whether the
            version is still being loaded.
        is_covered: Whether another version answers if the load of this one fails.
        on_front: Takes a function that moves a version from the serving loop to a
            process, to be called after a call on the loop took too long. That function
            takes the seconds of the call, blocks, and may be called more than once, on
            any thread but the loop.
        clock: Tells the time.

    """

    interpreter_for: Callable[[Backend], Interpreter]
    device: str = "cpu"
    intra_op_threads: int = 1
    profiler: Profiler | None = None
    placement: PlacementOptions | None = None
    batch: Batch = lambda servable, _path, _profile, _backend: servable
    gates_examples: bool = True
    warm_up_s: float = 0.0
    call_s: float = 30.0
    replay: Callable[[Servable, str], None] = lambda _servable, _path: None
    note: Callable[[ServableId, str, int | None, bool], None] = lambda *_: None
    fault: Callable[[ServableId, ServingError, bool], None] = lambda *_: None
    is_covered: Callable[[ServableId], bool] = lambda _: False
    on_front: Callable[[ServableId, LeaveFront], None] = lambda _id, _leave: None
    clock: Clock = field(default_factory=MonotonicClock)


class Platform(Protocol):
    """One way of storing and running a model. Immutable, thread-safe.

    It is a :class:`VersionReader`, or it makes loaders of its own (:class:`OwnPlatform`).
    Implementors promise that ``recognizes`` and ``runs_code`` look at the version's files
    and run none of its code; they are quick whatever the size of the version.
    """

    @property
    def name(self) -> str:
        """The name that manifests and ``model_platform`` use."""
        ...

    def recognizes(self, path: str) -> bool:
        """Whether the version directory, which has no manifest, is of this platform."""
        ...

    def runs_code(self, path: str) -> bool:
        """Whether loading the version executes code that came with it."""
        ...


@runtime_checkable
class OwnPlatform(Platform, Protocol):
    """A platform whose versions need no interpreter, such as that of a third party.

    One that has a ``loader`` is such a platform, whatever else it has.

    Third parties register theirs under the entry-point group ``tfs.platforms``; the
    entry point names an object with these members, or a function without arguments
    that returns one.
    """

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        """Returns a new loader for the version directory ``path``.

        A fault of the version shows when it is estimated or loaded, or as a ServingError
        raised here.
        """
        ...


class VersionReader(Platform, Protocol):
    """A platform that reads versions which interpreters run."""

    def describe(self, path: str) -> VersionDescription:
        """Returns signatures and entry; runs no model code.

        Raises:
            ServingError: They cannot be read.

        """
        ...

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns what loading and holding the version takes at most.

        Raises:
            ServingError: Its files cannot be read.

        """
        ...

    def why_apart(self, path: str) -> str:
        """Returns why the version must not run in the server process; "" if it may.

        It may if it is a graph, or code that reaches nothing beyond torch, numpy and
        Python (``tfs.servables.source_reach``). Runs no model code.

        Raises:
            ServingError: It cannot be read.
            OSError: It cannot be read.
            zipfile.BadZipFile: It is damaged.

        """
        ...
