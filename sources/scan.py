"""One look at one base path: which versions are aspired now, and why not others.

It is a pure function of what the file system shows and of what was seen before: it
takes the memory of the last scan and returns the memory for the next one. Rejected:
remembering inside the source, because time would have to pass in every test.

A version directory is *ready* when its manifest is there (writers rename it into
place whole), or when a hand-written one has everything a server needs and nothing
in it changed for ``settle_s``: half a copy is never served.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from sources.storage import Contents, FileSystem
from sources.storage_path import StoragePath
from sources.version_policy import (
    Latest,
    Specific,
    VersionPolicy,
    choose,
    name_versions,
)
from tfs.core.manifest import MANIFEST
from tfs.core.servable_data import ServableData
from tfs.core.servable_id import ServableId
from tfs.core.version_directory import PLATFORM_BY_FILE, SIGNATURES

SELF_DESCRIBING: Final = frozenset(
    {"model.pt2", "servable.py", "table.csv", "table.json"}
)
"""Payload files from which their platform reads the signatures itself."""

KNOWN_PLATFORMS: Final = frozenset(
    {"tensorflow", *(name for names in PLATFORM_BY_FILE.values() for name in names)}
)
"""Platforms whose payload files are known here."""


@dataclass(frozen=True, slots=True)
class ServableToMonitor:
    """One servable, where its versions lie and which of them are wanted.

    Attributes:
        name: The servable's name.
        base_path: Absolute path of the directory whose children are the versions,
            or a URL for a remote file system.
        policy: Which versions are aspired.
        pinned: Versions that are aspired whatever the policy says: a primary, a canary.
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

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a servable to monitor needs a name")
        if not self.base_path:
            raise ValueError(f"servable {self.name} needs a base path")


@dataclass(frozen=True, slots=True)
class Sighting:
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
class Scan:
    """The outcome of one look. Immutable.

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

    Raises:
        OSError: The base path cannot be listed, so nothing is known about any version.

    """
    base_path = servable.base_path.rstrip("/") or "/"
    names = name_versions(file_system.list_directories(servable.base_path))
    look = _Look(
        file_system,
        seen,
        frozenset(aspired),
        now_s,
        wall_s,
        settle_s,
        self_describing,
        has_other_platforms,
        None if known is None else frozenset(known),
    )

    def path_of(version: int) -> str:
        return f"{base_path.rstrip('/')}/{names[version]}"

    chosen = choose(
        servable.policy,
        names,
        lambda version: look.at(
            servable.name, version, path_of(version), servable.platform
        ),
        servable.pinned,
    )
    for version in chosen.missing:
        if version not in names:
            look.problems.append(
                f"version {version} of {servable.name} is wanted, but is not under "
                f"{base_path}"
            )
    if servable.policy == Specific(()) and not servable.pinned:
        look.problems.append(
            f"no version of {servable.name} is asked for: its policy, specific, lists none"
        )
    elif not names:
        look.problems.append(
            f"no version of {servable.name} under {base_path}: "
            + _why_no_version(file_system, base_path)
        )
    # Versions that the policy did not ask about keep their memory of how long they have
    # been unchanged.
    sightings = {
        path: sighting
        for path in map(path_of, names)
        if (sighting := look.sightings.get(path, seen.get(path))) is not None
    }
    return Scan(
        versions=tuple(
            ServableData(
                ServableId(servable.name, version),
                StoragePath(
                    path_of(version),
                    sightings[path_of(version)].accepted,
                    servable.platform,
                    servable.settings,
                ),
            )
            for version in chosen.versions
        ),
        at_hand=tuple(sorted(names)),
        sightings=sightings,
        overwritten=tuple(v for v in chosen.versions if v in look.overwritten),
        problems=tuple(look.problems),
        settled_at_s=min(look.settled_at_s, default=None),
        is_blind=look.is_blind,
    )


@dataclass(slots=True)
class _Look:
    """Looks at version directories during one scan. Confined to it."""

    file_system: FileSystem
    seen: Mapping[str, Sighting]
    aspired: frozenset[int]
    now_s: float
    wall_s: float
    settle_s: float
    self_describing: frozenset[str]
    has_other_platforms: bool
    known: frozenset[int] | None
    sightings: dict[str, Sighting] = field(default_factory=dict)
    overwritten: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    settled_at_s: list[float] = field(default_factory=list)
    is_blind: bool = False

    def at(self, name: str, version: int, path: str, platform: str = "") -> bool:
        """Returns whether the version is ready; remembers what it saw."""
        before = self.seen.get(path)
        accepted = before.accepted if before and version in self.aspired else ""
        try:
            contents = self.file_system.contents(path)
            committed = contents.has_manifest
            if committed is None:
                committed = self.file_system.is_file(f"{path}/{MANIFEST}")
        except OSError as error:
            # It is listed but unreadable. A version that was served goes on being
            # served.
            self.is_blind = True
            if before is not None:
                # As it was, because it is not known to differ.
                self.sightings[path] = before
            elif not self._lay_there(version):
                self.sightings[path] = Sighting("", self.now_s)
            self.problems.append(f"cannot read {path} of {name}: {why(error)}")
            return bool(accepted)
        self.is_blind |= contents.is_barred or contents.is_linked
        since_s = self.now_s
        if before is not None and before.fingerprint == contents.fingerprint:
            since_s = before.since_s
        lacks = "" if committed else self._lacks(contents.names, platform)
        if lacks and accepted:
            # While a version is deleted file by file, its directory stays until the
            # end. Until then nothing has been decided about what should serve instead.
            self.sightings[path] = Sighting(contents.fingerprint, since_s, accepted)
            self.problems.append(
                f"version {version} of {name} lost files: {lacks}; what is loaded of "
                "it stays while its directory is there"
            )
            return True
        if lacks:
            self.sightings[path] = Sighting(contents.fingerprint, since_s)
            self.problems.append(f"version {version} of {name} is not served: {lacks}")
            return False
        is_old = before is None and self._lay_there(version)
        is_still = self.now_s - since_s >= self.settle_s or (
            is_old and self._was_still(contents)
        )
        if (committed and not accepted) or is_still:
            if accepted and accepted != contents.fingerprint:
                self.overwritten.add(version)
            accepted = contents.fingerprint
        elif accepted != contents.fingerprint:
            self.settled_at_s.append(since_s + self.settle_s)
        self.sightings[path] = Sighting(contents.fingerprint, since_s, accepted)
        return bool(accepted)

    def _lay_there(self, version: int) -> bool:
        return self.known is None or version in self.known

    def _was_still(self, contents: Contents) -> bool:
        # Files that were written long before the first look need not be watched. A time
        # in the future (by another machine's clock) proves nothing.
        newest_s = contents.newest_change_s
        return newest_s is not None and self.wall_s - newest_s >= self.settle_s

    def _lacks(self, names: frozenset[str], platform: str) -> str:
        """Returns what a directory without a manifest lacks, empty if nothing."""
        if names & self.self_describing:
            return ""
        if names and platform and platform not in KNOWN_PLATFORMS:
            # A third party's platform, which alone can tell, when it loads the version.
            return ""
        payloads = sorted(names & PLATFORM_BY_FILE.keys())
        if payloads and SIGNATURES in names:
            return ""
        if payloads:
            return (
                f"no {MANIFEST}, and {payloads[0]} alone does not say how it is called: "
                f"wait if it is still being copied, {MANIFEST} comes last; else write the "
                f"version with tfs.export.save, or put {SIGNATURES} beside it"
            )
        if "saved_model.pb" in names or "saved_model.pbtxt" in names:
            return "it is a TensorFlow SavedModel; export the model from PyTorch"
        if names and self.has_other_platforms and platform in ("", "tensorflow"):
            return ""  # as above: only its contents tell the platform
        wanted = ", ".join(sorted(PLATFORM_BY_FILE))
        found = ", ".join(sorted(names)[:_MAX_NAMES])
        holds = f"no {MANIFEST} and none of {wanted}, but {found}"
        return (
            f"{holds if names else 'it is empty'}: wait if it is still being written, "
            "else write the version with tfs.export.save"
        )


def _why_no_version(file_system: FileSystem, base_path: str) -> str:
    """Returns what to do about a base path without a directory that is a version."""
    folder, _, name = base_path.rpartition("/")
    is_number = bool(name_versions([name]))
    # Asking a store goes over the network, and happens every second while it shows no
    # version.
    is_cheap = is_number or "://" not in base_path
    files = (MANIFEST, *PLATFORM_BY_FILE) if is_cheap else (MANIFEST,)
    if any(file_system.is_file(f"{base_path}/{file}") for file in files):
        if is_number:
            return f"it is a version itself; name {folder}, in which it lies"
        return f"the files of a version lie in it; move them to {base_path}/1"
    return f"a version is a directory with a number for its name, such as {base_path}/1"


_MAX_NAMES: Final = 5  # most file names in a message


def why(error: OSError) -> str:
    """Returns the system's words for the error, without the path they may carry."""
    return error.strerror or str(error) or type(error).__name__
