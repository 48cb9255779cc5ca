"""A server core without threads, on a file system in memory; shared by tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from managers.aspired_versions_manager import (
    AspiredVersionsManager,
    AspiredVersionsManagerOptions,
)
from managers.loading.load_admission import ResourceTracker
from managers.state_monitor import ServableStateMonitor, StateMonitorOptions
from managers.versions.version import RetryOptions
from sources.file_system import FileSystemSourceOptions
from sources.servable_to_monitor import StoragePath
from tests.server.puppet import PuppetLoader, PuppetServable, floats
from tfs.core.errors import DataLoss, ServingError
from tfs.core.event_bus import EventBus
from tfs.core.executor import Executor, InlineExecutor, ThreadExecutor
from tfs.core.loader import Loader
from tfs.core.servable import InferenceTask, Outcome, Tensors
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import Stats
from tfs.server.config.running_config import Origin
from tfs.server.config.server_config import Message, parse_config_text, read_config_text
from tfs.server.config.waiting import ConfigOutcome
from tfs.server.core import ServerCore
from tfs.server.model_sources import SourceParts
from tfs.testing.fake_call import FakeCall
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem
from tfs.testing.fake_loader import LoaderLog
from tfs.testing.fake_loop import FakeLoop


def model(name: str, base_path: str = "", extra: str = "") -> str:
    """Returns the config of one model; by default under /models."""
    return f'config {{ name: "{name}" base_path: "{base_path or "/models/" + name}" {extra} }}'


def config(*models: str) -> str:
    """Returns the text of a config file."""
    return f"model_config_list {{ {' '.join(models)} }}"


def message(*models: str) -> Message:
    """Returns a config as a message."""
    return parse_config_text(config(*models), "test")


def one(outcomes: list[ConfigOutcome]) -> ConfigOutcome:
    """Returns the only outcome there is."""
    (outcome,) = outcomes
    return outcome


class Environment:
    """A core whose every step a test takes by hand.

    Pools, configs and comparisons run on the caller's thread, or on their own where
    ``has_threads``; a step is over when those are idle.

    Attributes:
        core: The core.
        clock: Its clock.
        files: Where base paths lie.
        log: What loaders did.
        broken: Version directories whose load fails with DATA_LOSS.
        outcomes: How requests ended.

    """

    def __init__(
        self,
        state_dir: str = "",
        *,
        has_threads: bool = False,
        files: FakeFileSystem | None = None,
        unload_when_empty: bool = False,
        limit_bytes: int = 0,
    ) -> None:
        self.clock = FakeClock()
        self.files = files or FakeFileSystem(self.clock)
        self._threads: list[ThreadExecutor] = []
        self.log = LoaderLog()
        self.broken: set[str] = set()
        self.outcomes: list[Outcome] = []
        self._loop = FakeLoop(self.clock)
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(
            self.bus,
            clock=self.clock,
            options=StateMonitorOptions(max_num_log_events=10_000),
        )

        def executor(name: str, num_threads: int) -> Executor:
            if not has_threads:
                return InlineExecutor()
            self._threads.append(ThreadExecutor(num_threads, name, self.clock))
            return self._threads[-1]

        # Every version takes one byte.
        memory = ResourceTracker.ram(limit_bytes) if limit_bytes else None
        self.manager = AspiredVersionsManager(
            AspiredVersionsManagerOptions(
                retry=RetryOptions(max_num_retries=0), release_memory=None
            ),
            event_bus=self.bus,
            clock=self.clock,
            load_executor=executor("load", 4),
            unload_executor=executor("unload", 4),
            resource_tracker=memory,
        )
        self.core = ServerCore(
            manager=self.manager,
            sources=SourceParts(
                FileSystemSourceOptions(
                    poll_wait_s=-1, watch=False, unload_when_empty=unload_when_empty
                ),
                self._loader,
                ("", "hashmap", "onnx"),
                file_system=self.files,
            ),
            monitor=self.monitor,
            loop=self._loop,
            clock=self.clock,
            stats=Stats(),
            state_dir=state_dir,
            executor=executor("config", 1),
            comparisons=executor("canary", 1),
            memory=memory,
        )

    def _loader(self, servable_id: ServableId, storage: StoragePath) -> Loader[object]:
        path = storage.path
        # Asked for anew by each load, so that what is mended can be tried again.
        errors: Iterator[ServingError | None] = (
            DataLoss(f"{path} is damaged") if path in self.broken else None
            for _ in itertools.count()
        )
        return PuppetLoader(
            servable_id, value=storage.path, ram_bytes=1, errors=errors, log=self.log
        )

    def threads(self, name: str) -> ThreadExecutor:
        """Returns the pool of that name; there are some only with threads."""
        return next(each for each in self._threads if each.name == name)

    # -- what tests do -----------------------------------------------------------------

    def add_version(self, name: str, version: int, base_path: str = "") -> str:
        """Writes a version; returns its directory."""
        path = f"{base_path or '/models/' + name}/{version}"
        self.files.write(f"{path}/servable.json", str(version).encode())
        return path

    def start(self, text: str, origin: Origin = Origin.CONFIG_FILE) -> None:
        """Applies the first config and lets everything happen."""
        self.core.begin(read_config_text(text, "test"), origin, "/models.config")
        self.settle()

    def close(self) -> bool:
        """Unloads everything and ends every thread; returns whether that was done."""
        return self.core.close(self.clock.now() + 1)

    def look(self) -> None:
        """Looks at every base path and lets everything happen."""
        self.core.sources.source.poll_once()
        self.settle()

    def settle(self) -> None:
        """Runs manager and loop until nothing more happens."""
        self._wait_idle()
        while self.manager.has_mail or self._loop.num_posted:
            self.manager.step()
            self._wait_idle()
            self.run_posted()
            self._wait_idle()

    def _wait_idle(self) -> None:
        for each in self._threads:
            assert each.wait_idle()

    def run_posted(self) -> None:
        """Runs what was posted to the loop."""
        self._loop.run_posted()

    def expire(self) -> None:
        """Runs every timer whose time has come."""
        self._loop.run_due()

    def apply(
        self,
        *models: str,
        origin: Origin = Origin.APPLY_CONFIG,
        deadline_s: float | None = None,
        waits_for_all: bool = True,
        validate_only: bool = False,
        settles: bool = True,
    ) -> list[ConfigOutcome]:
        """Applies a config; returns a list that the outcome comes into."""
        outcomes: list[ConfigOutcome] = []
        self.core.config.apply(
            lambda: message(*models),
            origin,
            "test",
            outcomes.append,
            deadline_s=deadline_s,
            waits_for_all=waits_for_all,
            validate_only=validate_only,
        )
        if settles:
            self.settle()
        return outcomes

    def available(self, name: str) -> list[int]:
        """Returns the versions that can be requested, newest first."""
        return [
            state.id.version
            for state in self.monitor.version_states(name)
            if state.manager_state is ManagerState.AVAILABLE
        ]

    def served(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> int:
        """Returns the version that a request would get."""
        handle = self.core.served.look_at(name, version, label)
        handle.release()
        return handle.id.version

    def served_path(self, name: str) -> object:
        """Returns the directory that the answering version was loaded from."""
        handle = self.core.served.look_at(name, None, None)
        handle.release()
        return handle.servable.value  # type: ignore[attr-defined]  # a FakeServable

    def puppet(self, name: str, version: int) -> PuppetServable:
        """Returns what is loaded for a version."""
        handle = self.core.served.look_at(name, version, None)
        handle.release()
        assert isinstance(handle.servable, PuppetServable)
        return handle.servable

    def refuse(self, name: str, key: str = "") -> int:
        """Pins for a request as a handler does, that then does not fit a signature."""
        metadata = (("tfs-routing-key", key),) if key else ()
        handle = self.core.served.acquire(
            name, None, None, None, FakeCall(metadata=metadata)
        )
        handle.release()
        self.settle()
        return handle.id.version

    def request(
        self,
        name: str,
        key: str = "",
        settles: bool = True,
        *,
        version: int | None = None,
        label: str | None = None,
        inputs: Tensors | None = None,
    ) -> int:
        """Sends one request as a handler does; returns the version that got it."""
        metadata = (("tfs-routing-key", key),) if key else ()
        handle = self.core.served.acquire(
            name,
            version,
            label,
            None,
            FakeCall(metadata=metadata),
        )

        def done(outcome: Outcome) -> None:
            self.outcomes.append(outcome)
            handle.release()

        signature = handle.servable.signatures["serving_default"]
        inputs = signature.with_defaults(inputs or {"x": floats((1.0, 2.0))})
        task = InferenceTask(
            "serving_default",
            signature,
            inputs,
            done,
            num_rows=signature.check_inputs(inputs),
        )
        handle.servable.submit(task)
        if settles:
            self.settle()
        return handle.id.version
