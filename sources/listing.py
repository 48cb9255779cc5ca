"""One listing of one base path: which versions are aspired now, and why not others.

A listing depends on nothing but what the file system shows and what the listing before
remembered. Rejected: remembering inside the lister, because time would have to pass in
every test.

A version directory is *ready* when its manifest is there (writers rename it into
place whole), or when a hand-written one has everything a server needs and nothing
in it changed for ``settle_s``: half a copy is never served.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sources.servable_to_monitor import (
    FileSystemSourceOptions,
    ServableToMonitor,
    StoragePath,
)
from sources.storage.file_system import FileSystem, why
from sources.storage.version_contents import Contents, what_is_missing, why_no_version
from sources.version_policy import (
    WHAT_A_VERSION_IS,
    Specific,
    choose,
    list_lookalikes,
    list_names,
    name_versions,
)
from tfs.core.clock import Clock
from tfs.core.servable_id import ServableId
from tfs.core.source import ServableData
from tfs.core.version.manifest import MANIFEST
from tfs.core.version_directory import BATCHING_PARAMETERS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """The state in which a version directory was last seen.

    Attributes:
        fingerprint: Differs whenever its files have changed.
        since_s: When this fingerprint was first seen, by the monotonic clock.
        accepted: The fingerprint under which the version is aspired; empty while it is
            not ready. While files of an aspired version change, it is an older one.

    """

    fingerprint: str
    since_s: float
    accepted: str = ""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the next listing has to know of the last one. Immutable.

    Attributes:
        seen: What was seen of each version directory, by path.
        aspired: Versions that are aspired now. They stay ready while their files
            change; any other version has to be unchanged for a while again.
        at_hand: Versions that were there; None if nothing was listed before. For a
            directory that came since then, only time during which it was watched counts.
            By the storage's clock, or by this machine's after a jump, half a copy could
            look old.

    """

    seen: Mapping[str, SeenVersion] = field(default_factory=dict)
    aspired: frozenset[int] = frozenset()
    at_hand: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What one listing found. Immutable.

    Attributes:
        servable: The servable, as it was configured when the listing began.
        begun_s: When it began, by the monotonic clock.
        versions: The versions to aspire, in the policy's order.
        at_hand: Every numbered directory, ready or not.
        seen: What was seen of each version directory, by path.
        overwritten: Versions whose accepted files differ from those of the listing before.
        problems: Sentences for status and log; each names the servable and the path.
        settled_at_s: When the next directory will have been unchanged for long enough;
            None if none is waiting.
        is_readable: Whether the base path could be listed. If not, nothing is known.
        is_blind: Whether something could not be read, or lies behind a link: no event
            tells when that changes.
        folders: The directories in which changes matter, but for the base path itself.

    """

    servable: ServableToMonitor
    begun_s: float
    versions: tuple[ServableData[StoragePath], ...] = ()
    at_hand: tuple[int, ...] = ()
    seen: Mapping[str, SeenVersion] = field(default_factory=dict)
    overwritten: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    settled_at_s: float | None = None
    is_readable: bool = True
    is_blind: bool = False
    folders: tuple[str, ...] = ()


class BasePathLister:
    """Lists base paths. Thread-safe; remembers nothing.

    Args:
        file_system: Where they lie.
        options: How long files must be unchanged, and what a version has to hold.
        clock: The monotonic time, and the wall clock, which is compared with the
            storage's times.

    """

    def __init__(
        self,
        file_system: FileSystem,
        options: FileSystemSourceOptions,
        clock: Clock,
    ) -> None:
        self.file_system = file_system
        self.options = options
        self.clock = clock

    def listing(self, servable: ServableToMonitor, before: Remembered) -> Listing:
        """Lists a base path; blocks as long as the storage does. Never raises."""
        name, base_path = servable.name, servable.base_path
        begun_s = self.clock.now()
        try:
            return _VersionDirectories(self, servable, before, begun_s).listing()
        except FileNotFoundError:
            problem = f"base path {base_path} of {name} does not exist"
        except OSError as error:
            problem = f"cannot read base path {base_path} of {name}: {why(error)}"
        except (
            Exception
        ) as error:  # a fault of one file system must not stop the others
            log.exception("event=listing_failed servable=%s", name)
            problem = f"cannot list {base_path} of {name}: {error}"
        return unreadable(servable, begun_s, problem)


def unreadable(servable: ServableToMonitor, begun_s: float, problem: str) -> Listing:
    """Returns the listing of a base path of which nothing is known."""
    return Listing(
        servable, begun_s, problems=(problem,), is_readable=False, is_blind=True
    )


class _VersionDirectories:
    """The directories of one servable's versions. Confined to one listing."""

    def __init__(
        self,
        lister: BasePathLister,
        servable: ServableToMonitor,
        before: Remembered,
        now_s: float,
    ) -> None:
        self.file_system = lister.file_system
        self.servable = servable
        self._options = lister.options
        self._before = before
        self._now_s = now_s
        self._wall_s = lister.clock.wall_s()
        self._seen: dict[str, SeenVersion] = {}
        self._overwritten: set[int] = set()
        self._settled_at_s: list[float] = []
        self._folders: list[str] = []
        self._is_blind = False
        self.problems: list[str] = []

    def listing(self) -> Listing:
        """Lists the base path.

        Raises:
            OSError: It cannot be listed, so nothing is known about any version.

        """
        servable, base_path = self.servable, self.servable.base_path.rstrip("/")
        listed = self.file_system.list_directories(servable.base_path)
        links = self.file_system.broken_links(base_path or "/")
        names = name_versions(listed)
        paths = {version: f"{base_path}/{name}" for version, name in names.items()}
        broken = {
            version: f"{base_path}/{name}"
            for version, name in name_versions(links).items()
            if version not in names
        }
        chosen = choose(
            servable.policy,
            names,
            lambda version: self.is_ready(version, paths[version]),
            servable.pinned | servable.labelled,
        )
        lookalikes = list_lookalikes(listed)
        self.note_absent(version for version in chosen.missing if version not in names)
        self.note_why_none(has_any=bool(names or broken or lookalikes))
        self.note_broken(broken)
        self.note_lookalikes(lookalikes)
        self.note_misplaced()
        # Versions that the policy did not ask about keep their memory of how long they
        # have been unchanged.
        seen = {
            path: state
            for path in paths.values()
            if (state := self._seen.get(path, self._before.seen.get(path))) is not None
        }
        versions = tuple(
            ServableData(
                ServableId(servable.name, version),
                StoragePath(
                    paths[version],
                    seen[paths[version]].accepted,
                    servable.platform,
                    servable.settings,
                ),
            )
            for version in chosen.versions
        )
        return Listing(
            servable,
            self._now_s,
            versions=versions,
            at_hand=tuple(sorted(paths)),
            seen=seen,
            overwritten=tuple(v for v in chosen.versions if v in self._overwritten),
            problems=tuple(self.problems),
            settled_at_s=min(self._settled_at_s, default=None),
            is_blind=self._is_blind,
            folders=tuple(self._folders),
        )

    def is_ready(self, version: int, path: str) -> bool:
        """Returns whether the version can be aspired; remembers what it saw."""
        before = self._before.seen.get(path)
        accepted = before.accepted if before and version in self._before.aspired else ""
        try:
            contents = self.file_system.contents(path)
            committed = contents.has_manifest
            if committed is None:
                committed = self.file_system.is_file(f"{path}/{MANIFEST}")
        except OSError as error:
            self._note_unreadable(version, path, before, error)
            return bool(accepted)  # a version that was served goes on being served
        self._is_blind |= contents.is_barred or contents.is_linked
        self._folders += contents.folders
        seen = contents.fingerprint
        since_s = self._now_s
        if before is not None and before.fingerprint == seen:
            since_s = before.since_s
        missing = "" if committed else self._what_is_missing(contents)
        if missing:
            # While a version is deleted file by file, its directory stays until the
            # end. Until then nothing has been decided about what should serve instead.
            self._seen[path] = SeenVersion(seen, since_s, accepted)
            self._note_missing(version, missing, is_served=bool(accepted))
            return bool(accepted)
        is_old = before is None and self._lay_there(version)
        is_still = self._now_s - since_s >= self._options.settle_s or (
            is_old and self._was_still(contents)
        )
        if (committed and not accepted) or is_still:
            if accepted not in ("", seen):
                self._overwritten.add(version)
            accepted = seen
        elif accepted != seen:
            self._settled_at_s.append(since_s + self._options.settle_s)
        self._seen[path] = SeenVersion(seen, since_s, accepted)
        return bool(accepted)

    def note_absent(self, versions: Iterable[int]) -> None:
        """Notes versions that are asked for by number, and that have no directory."""
        policy = self.servable.policy
        named = policy.versions if isinstance(policy, Specific) else ()
        for version in versions:
            if version not in named and version not in self.servable.pinned:
                continue  # only a label names it
            self.problems.append(
                f"version {version} of {self.servable.name} is wanted, but is not under "
                f"{self._base_path}"
            )

    def note_why_none(self, *, has_any: bool) -> None:
        """Notes why no version can be aspired, if none is asked for or there is none."""
        if self.servable.policy == Specific(()) and not self.servable.pinned:
            self.problems.append(
                f"no version of {self.servable.name} is asked for: its policy, specific, "
                "lists none"
            )
        elif not has_any:
            self.problems.append(
                f"no version of {self.servable.name} under {self._base_path}: "
                + why_no_version(self.file_system.is_file, self._base_path)
            )

    def note_broken(self, paths: Mapping[int, str]) -> None:
        """Notes versions that are links, and lead to nothing that can be seen."""
        for version, path in paths.items():
            self._is_blind = True  # no event tells of what appears elsewhere
            self.problems.append(
                f"version {version} of {self.servable.name} is a link that leads nowhere, "
                f"or to where this server may not look: {path}"
            )

    def note_lookalikes(self, names: Sequence[str]) -> None:
        """Notes directories whose names look like versions and are none."""
        if names:
            self.problems.append(
                f"{list_names(names)} under {self._base_path} is no version of "
                f"{self.servable.name}: {WHAT_A_VERSION_IS}"
            )

    def note_misplaced(self) -> None:
        """Notes batching parameters that belong into a version."""
        path = f"{self._base_path}/{BATCHING_PARAMETERS}"
        # A store would be asked over the network at each look.
        if not self.file_system.place(path) and self.file_system.is_file(path):
            self.problems.append(
                f"{path} is not read: each version of {self.servable.name} has its own, "
                "so move it into their directories, or name it in "
                "--batching_parameters_file"
            )

    @property
    def _base_path(self) -> str:
        return self.servable.base_path.rstrip("/") or "/"

    def _note_unreadable(
        self, version: int, path: str, before: SeenVersion | None, error: OSError
    ) -> None:
        """Notes a directory that is listed, and whose contents cannot be read."""
        self._is_blind = True
        if before is not None:
            # As it was, because it is not known to differ.
            self._seen[path] = before
        elif not self._lay_there(version):
            self._seen[path] = SeenVersion("", self._now_s)
        self.problems.append(
            f"cannot read {path} of {self.servable.name}: {why(error)}"
        )

    def _what_is_missing(self, contents: Contents) -> str:
        return what_is_missing(
            contents.names,
            self.servable.platform,
            has_other_platforms=self._options.has_other_platforms,
        )

    def _note_missing(self, version: int, missing: str, *, is_served: bool) -> None:
        what = f"version {version} of {self.servable.name}"
        self.problems.append(
            f"{what} lost files: {missing}; what is loaded of it stays while its "
            "directory is there"
            if is_served
            else f"{what} is not served: {missing}"
        )

    def _lay_there(self, version: int) -> bool:
        """Returns whether the directory was there at the listing before, if any."""
        at_hand = self._before.at_hand
        return at_hand is None or version in at_hand

    def _was_still(self, contents: Contents) -> bool:
        # Files that were written long before the first look need not be watched. A time
        # in the future (by another machine's clock) proves nothing.
        newest_s = contents.newest_change_s
        return (
            newest_s is not None and self._wall_s - newest_s >= self._options.settle_s
        )
