"""A file-system source that a test steps, over a fake file system and clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.version_policy import Latest, VersionPolicy
from tfs.core.source import connect
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem
from tfs.testing.recording_target import RecordingTarget


def monitor(
    name: str = "digits",
    policy: VersionPolicy | None = None,
    base_path: str = "",
    pinned: frozenset[int] = frozenset(),
) -> ServableToMonitor:
    return ServableToMonitor(
        name, base_path or f"/models/{name}", policy or Latest(), pinned
    )


@dataclass
class World:
    """A source, what it looks at and what it tells."""

    options: FileSystemSourceOptions
    clock: FakeClock = field(default_factory=FakeClock)
    target: RecordingTarget[StoragePath] = field(default_factory=RecordingTarget)

    def __post_init__(self) -> None:
        self.files = FakeFileSystem(self.clock)
        self.source = FileSystemSource(
            self.options,
            file_system=self.files,
            clock=self.clock,
        )
        connect(self.source, self.target)

    def publish(self, version: int | str, name: str = "digits") -> None:
        """Makes a committed version appear in one step."""
        path = f"/models/{name}/{version}"
        temporary = f"/models/{name}/.tmp-{version}-x"
        self.files.write(f"{temporary}/model.pt", b"weights")
        self.files.write(f"{temporary}/servable.json", b"{}")
        self.files.rename(temporary, path)

    def poll(self) -> list[tuple[str, list[int]]]:
        """Scans everything; returns what the target was told meanwhile."""
        self.source.poll_once()
        return [
            (call.name, [data.id.version for data in call.versions])
            for call in self.target.take()
        ]

    def last_reason(self) -> str:
        return self.target.calls[-1].reason


def world(*servables: ServableToMonitor, **options: object) -> World:
    return World(
        FileSystemSourceOptions(
            servables or (monitor(),),
            poll_wait_s=-1,
            **options,  # type: ignore[arg-type]
        )
    )
