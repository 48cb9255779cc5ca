"""What a source is told to look for, how it looks, and what it finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sources.version_policy import Latest, VersionPolicy
from tfs.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class StoragePath:
    """A version directory at one moment. Immutable.

    Two payloads of the same version differ when there is something new to load:
    another base path, files that were replaced in place, or other settings.

    Attributes:
        path: The version directory as it was found ("/models/digits/0042"), or a
            URL under a remote base path.
        fingerprint: Digest of the names, sizes and times of its files; empty when
            nobody looked (a static source).
        platform: The configured ``model_platform``, empty for "detect by content".
        settings: Whatever else decides how it is loaded, as one word for all of it.

    """

    path: str
    fingerprint: str = ""
    platform: str = ""
    settings: str = ""


@dataclass(frozen=True, slots=True)
class ServableToMonitor:
    """One servable, where its versions lie and which of them are wanted.

    Attributes:
        name: The servable's name.
        base_path: Absolute path of the directory whose children are the versions,
            or a URL for a remote file system.
        policy: Which versions are aspired.
        pinned: Versions that are aspired whatever the policy says: a primary, a canary.
        labelled: Versions that are aspired, too, if they are there.
        platform: ``model_platform`` of the configuration, handed on.
        settings: Whatever else decides how versions are loaded, handed on. Other
            settings make another payload.

    """

    name: str
    base_path: str
    policy: VersionPolicy = field(default_factory=Latest)
    pinned: frozenset[int] = frozenset()
    platform: str = ""
    settings: str = ""
    labelled: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a servable to monitor needs a name")
        if not self.base_path:
            raise ValueError(f"servable {self.name} needs a base path")


@dataclass(frozen=True, slots=True)
class FileSystemSourceOptions:
    """How a :class:`FileSystemSource` looks. Immutable.

    Attributes:
        servables: What to monitor; names are unique.
        poll_wait_s: Seconds between looks if the file system gives no events. If it
            does, seconds between checks that the base path is still the same directory.
            0 looks once at the start and then only at what a new configuration changed.
            Below 0, only ``poll_once`` looks.
        rescan_s: Seconds between looks if the file system gives events; more for
            thousands of servables.
        watch: Whether base paths are watched whose file system gives events; False polls
            everywhere.
        settle_s: How long a version directory without a manifest, or one whose
            files changed, must be still before it is (newly) aspired.
        unload_when_empty: Whether a base path that shows no version any more
            unloads the last ones. A base path that is gone never does.
        require_versions: Whether a servable without any version directory is an
            error at the start and in ``update_config``.
        has_other_platforms: Whether there are platforms that are not built in,
            which may serve directories that the source does not recognize.

    """

    servables: tuple[ServableToMonitor, ...] = ()
    poll_wait_s: float = 1.0
    rescan_s: float = 30.0
    watch: bool = True
    settle_s: float = 2.0
    unload_when_empty: bool = False
    require_versions: bool = False
    has_other_platforms: bool = False

    def __post_init__(self) -> None:
        by_name(self.servables)
        if self.rescan_s <= 0:
            raise ValueError(f"rescan_s must be positive: {self.rescan_s}")
        if self.settle_s < 0:
            raise ValueError(f"settle_s must not be negative: {self.settle_s}")


def by_name(servables: Iterable[ServableToMonitor]) -> dict[str, ServableToMonitor]:
    """Returns the servables by name.

    Raises:
        InvalidArgument: A name occurs twice.

    """
    found: dict[str, ServableToMonitor] = {}
    for servable in servables:
        if servable.name in found:
            raise InvalidArgument(f"servable {servable.name} is configured twice")
        found[servable.name] = servable
    return found
