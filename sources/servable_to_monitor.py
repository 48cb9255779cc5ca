"""One servable as a source is told to look for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sources.version_policy import Latest, VersionPolicy


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
