"""One look at one base path: which versions are aspired now, and why not others.

It is a pure function of what the file system shows and of what was seen before: it
takes the memory of the last scan and returns the memory for the next one. Rejected:
remembering inside the source, because time would have to pass in every test.

A version directory is *ready* when its manifest is there (writers rename it into
place whole), or when a hand-written one has everything a server needs and nothing
in it changed for ``settle_s``: half a copy is never served.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sources.servable_to_monitor import ServableToMonitor
from sources.storage import Contents, FileSystem, why
from sources.storage_path import StoragePath
from sources.version_contents import SELF_DESCRIBING, what_is_missing, why_no_version
from sources.version_policy import (
    MAX_VERSION,
    Specific,
    choose,
    list_lookalikes,
    name_versions,
)
from tfs.core.manifest import MANIFEST
from tfs.core.servable_data import ServableData
from tfs.core.servable_id import ServableId
from tfs.core.version_directory import BATCHING_PARAMETERS

_MAX_NAMES: Final = 5  # most names in a message


@dataclass(frozen=True, slots=True)
class Sighting:
    """The state in which a version directory was last seen.

    Attributes:
        fingerprint: Differs whenever its files have changed.
        since_s: When this fingerprint was first seen, by the monotonic clock.
        accepted: The fingerprint under which the version is aspired; empty while it is
            not ready. While files of an aspired version change, it is an older one.
        changes: ``Contents.changes`` when it was accepted.

    """

    fingerprint: str
    since_s: float
    accepted: str = ""
    changes: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """The outcome of one look at a base path. Immutable.

    Attributes:
        versions: The aspired versions, in the policy's order.
        at_hand: Every numbered directory, ready or not.
        sightings: What was seen of each version directory, by path; passed to the next
            scan.
        overwritten: Versions whose accepted files differ from those of the last scan.
        problems: Sentences for status and log; each names the servable and the path.
        settled_at_s: When the next directory will have been unchanged for long enough;
            None if none is waiting.
        is_blind: Whether a directory, or a file of a version, could not be read, or lies
            behind a link: no event tells when that changes.

    """

    versions: tuple[ServableData[StoragePath], ...] = ()
    at_hand: tuple[int, ...] = ()
    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    overwritten: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    settled_at_s: float | None = None
    is_blind: bool = False


def scan(
    file_system: FileSystem,
    servable: ServableToMonitor,
    seen: Mapping[str, Sighting],
    *,
    aspired: Collection[int] = (),
    now_s: float,
    wall_s: float,
    settle_s: float,
    self_describing: frozenset[str] = SELF_DESCRIBING,
    has_other_platforms: bool = False,
    known: Collection[int] | None = None,
    has_failed: Callable[[ServableId], bool] = lambda _: False,
) -> Scan:
    """Looks at the servable's base path once.

    Args:
        file_system: Where the base path lies.
        servable: The servable, and which of its versions are wanted.
        seen: ``sightings`` of the previous scan; empty at the first.
        aspired: Versions that are aspired now. They stay ready while their files
            change; any other version has to be unchanged for a while again.
        now_s: Monotonic time.
        wall_s: Seconds since the epoch, compared with the storage's times.
        settle_s: How long a directory without a manifest, or one that was
            overwritten, must be unchanged.
        self_describing: File names that need no ``signatures.json`` beside them.
        has_other_platforms: Whether a directory with neither a manifest nor a payload
            known here may belong to another platform, which finds out when it loads it.
        known: ``at_hand`` of the previous scan; None at the first. For a directory that
            came since then, only time during which it was watched counts. By the
            storage's clock, or by this machine's after a jump, half a copy could look
            old.
        has_failed: Whether a version could not be loaded. Then any change of its files is
            worth another try, also one that left sizes and times as they were.

    Raises:
        OSError: The base path cannot be listed, so nothing is known about any version.

    """
    base_path = servable.base_path.rstrip("/")
    listed = file_system.list_directories(servable.base_path)
    names = name_versions(listed)
    paths = {version: f"{base_path}/{name}" for version, name in names.items()}
    directories = _VersionDirectories(
        file_system,
        servable,
        seen,
        frozenset(aspired),
        now_s,
        wall_s,
        settle_s,
        self_describing,
        has_other_platforms,
        None if known is None else frozenset(known),
        has_failed,
    )
    broken = {
        version: f"{base_path}/{name}"
        for version, name in name_versions(
            file_system.broken_links(base_path or "/")
        ).items()
        if version not in names
    }
    chosen = choose(
        servable.policy,
        names,
        lambda version: directories.is_ready(version, paths[version]),
        servable.pinned | servable.labelled,
    )
    may_be_absent = servable.labelled - servable.pinned
    directories.note_absent(
        version
        for version in chosen.missing
        if version not in names and version not in may_be_absent
    )
    lookalikes = list_lookalikes(listed)
    directories.note_why_none(has_any=bool(names or broken or lookalikes))
    directories.note_broken(broken)
    directories.note_lookalikes(lookalikes)
    directories.note_misplaced()
    return directories.as_scan(chosen.versions, paths)


@dataclass(slots=True)
class _VersionDirectories:
    """The directories of one servable's versions, as one scan finds them.

    Confined to the scan. Its arguments are those of :func:`scan`.
    """

    file_system: FileSystem
    servable: ServableToMonitor
    seen: Mapping[str, Sighting]
    aspired: frozenset[int]
    now_s: float
    wall_s: float
    settle_s: float
    self_describing: frozenset[str]
    has_other_platforms: bool
    known: frozenset[int] | None
    has_failed: Callable[[ServableId], bool]
    sightings: dict[str, Sighting] = field(default_factory=dict)
    overwritten: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    settled_at_s: list[float] = field(default_factory=list)
    is_blind: bool = False

    def is_ready(self, version: int, path: str) -> bool:
        """Returns whether the version can be aspired; remembers what it saw."""
        before = self.seen.get(path)
        accepted = before.accepted if before and version in self.aspired else ""
        try:
            contents = self.file_system.contents(path)
            committed = contents.has_manifest
            if committed is None:
                committed = self.file_system.is_file(f"{path}/{MANIFEST}")
        except OSError as error:
            self._note_unreadable(version, path, before, error)
            return bool(accepted)  # a version that was served goes on being served
        self.is_blind |= contents.is_barred or contents.is_linked
        seen = self._seen_as(version, contents, before, accepted)
        since_s = self.now_s
        if before is not None and before.fingerprint == seen:
            since_s = before.since_s
        changes = before.changes if before is not None else ""
        missing = "" if committed else self._what_is_missing(contents)
        if missing:
            # While a version is deleted file by file, its directory stays until the
            # end. Until then nothing has been decided about what should serve instead.
            self.sightings[path] = Sighting(seen, since_s, accepted, changes)
            self._note_missing(version, missing, is_served=bool(accepted))
            return bool(accepted)
        is_old = before is None and self._lay_there(version)
        is_still = self.now_s - since_s >= self.settle_s or (
            is_old and self._was_still(contents)
        )
        if (committed and not accepted) or is_still:
            if accepted != seen:
                changes = contents.changes
                if accepted:
                    self.overwritten.add(version)
            accepted = seen
        elif accepted != seen:
            self.settled_at_s.append(since_s + self.settle_s)
        self.sightings[path] = Sighting(seen, since_s, accepted, changes)
        return bool(accepted)

    def _seen_as(
        self, version: int, contents: Contents, before: Sighting | None, accepted: str
    ) -> str:
        """Returns the fingerprint to go by, which tells more of a version that failed."""
        fingerprint = contents.fingerprint
        if before is None or not accepted.startswith(fingerprint):
            return fingerprint
        if contents.changes == before.changes:
            return accepted
        if not self.has_failed(ServableId(self.servable.name, version)):
            return accepted
        return f"{fingerprint} {contents.changes}"

    def note_absent(self, versions: Iterable[int]) -> None:
        """Notes versions that the policy names, and that have no directory."""
        for version in versions:
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
                + why_no_version(self.file_system, self._base_path)
            )

    def note_broken(self, paths: Mapping[int, str]) -> None:
        """Notes versions that are links, and lead to nothing that can be seen."""
        for version, path in paths.items():
            self.is_blind = True  # no event tells of what appears elsewhere
            self.problems.append(
                f"version {version} of {self.servable.name} is a link that leads nowhere, "
                f"or to where this server may not look: {path}"
            )

    def note_lookalikes(self, names: Sequence[str]) -> None:
        """Notes directories whose names look like versions and are none."""
        if names:
            listed = ", ".join(map(repr, names[:_MAX_NAMES]))
            more = f" and {len(names) - _MAX_NAMES} more" if names[_MAX_NAMES:] else ""
            self.problems.append(
                f"{listed}{more} under {self._base_path} is no version of "
                f"{self.servable.name}: that is a whole number up to {MAX_VERSION}"
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

    def as_scan(self, versions: Sequence[int], paths: Mapping[int, str]) -> Scan:
        """Returns all that was found; ``versions`` are those to be aspired."""
        # Versions that the policy did not ask about keep their memory of how long they
        # have been unchanged.
        sightings = {
            path: sighting
            for path in paths.values()
            if (sighting := self.sightings.get(path, self.seen.get(path))) is not None
        }
        return Scan(
            versions=tuple(
                ServableData(
                    ServableId(self.servable.name, version),
                    StoragePath(
                        paths[version],
                        sightings[paths[version]].accepted,
                        self.servable.platform,
                        self.servable.settings,
                    ),
                )
                for version in versions
            ),
            at_hand=tuple(sorted(paths)),
            sightings=sightings,
            overwritten=tuple(each for each in versions if each in self.overwritten),
            problems=tuple(self.problems),
            settled_at_s=min(self.settled_at_s, default=None),
            is_blind=self.is_blind,
        )

    @property
    def _base_path(self) -> str:
        return self.servable.base_path.rstrip("/") or "/"

    def _note_unreadable(
        self, version: int, path: str, before: Sighting | None, error: OSError
    ) -> None:
        """Notes a directory that is listed, and whose contents cannot be read."""
        self.is_blind = True
        if before is not None:
            # As it was, because it is not known to differ.
            self.sightings[path] = before
        elif not self._lay_there(version):
            self.sightings[path] = Sighting("", self.now_s)
        self.problems.append(
            f"cannot read {path} of {self.servable.name}: {why(error)}"
        )

    def _what_is_missing(self, contents: Contents) -> str:
        return what_is_missing(
            contents.names,
            self.servable.platform,
            self_describing=self.self_describing,
            has_other_platforms=self.has_other_platforms,
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
        """Returns whether the directory was there at the previous scan, if any."""
        return self.known is None or version in self.known

    def _was_still(self, contents: Contents) -> bool:
        # Files that were written long before the first look need not be watched. A time
        # in the future (by another machine's clock) proves nothing.
        newest_s = contents.newest_change_s
        return newest_s is not None and self.wall_s - newest_s >= self.settle_s
