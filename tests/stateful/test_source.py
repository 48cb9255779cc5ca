"""The file-system source under random edits of the files and of its configuration.

A model of the rules, much simpler than the source, is kept beside it: at every poll
the two must agree on what is aspired, whatever happened in between.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.version_policy import All, Latest, Specific, VersionPolicy, choose
from tfs.core.source import AspiredVersions
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem

NAMES = ("a", "b")
SETTLE_S = 2.0

names = st.sampled_from(NAMES)
versions = st.integers(0, 5)
policies = st.one_of(
    st.builds(Latest, st.integers(1, 3)),
    st.just(All()),
    st.builds(Specific, st.lists(versions, max_size=3, unique=True).map(tuple)),
)


class SourceMachine(RuleBasedStateMachine):
    """Edits files, advances time, reconfigures, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.files = FakeFileSystem(self.clock)
        # What the model knows: versions whose manifest is there, and for those
        # without one when they were last touched.
        self.committed: dict[str, set[int]] = {name: set() for name in NAMES}
        self.by_hand: dict[str, dict[int, float]] = {name: {} for name in NAMES}
        self.base_paths: set[str] = set()
        self.expected: dict[str, list[int] | None] = dict.fromkeys(NAMES)
        # Directories that the last look at a base path showed: one that was gone in
        # between is a new one, whatever its number.
        self.listed: dict[str, set[int]] = {name: set() for name in NAMES}
        # By base path that could be listed: when each version without a manifest was
        # touched as it was last examined, and since when that is known.
        self.sights: dict[str, dict[int, tuple[float, float]]] = {}
        self.told: dict[str, AspiredVersions[StoragePath]] = {}
        self.calls: list[str] = []

    @initialize(unload_when_empty=st.booleans())
    def start(self, unload_when_empty: bool) -> None:
        self.unload_when_empty = unload_when_empty
        self.config = {name: ServableToMonitor(name, f"/{name}") for name in NAMES}
        self.source = FileSystemSource(
            FileSystemSourceOptions(
                tuple(self.config.values()),
                poll_wait_s=-1,
                settle_s=SETTLE_S,
                unload_when_empty=unload_when_empty,
            ),
            file_system=self.files,
            clock=self.clock,
        )
        self.source.set_aspired_versions_callback(self.take)

    def take(self, aspired: AspiredVersions[StoragePath]) -> None:
        assert aspired.reason
        ids = [data.id.version for data in aspired.versions]
        assert len(set(ids)) == len(ids)
        self.told[aspired.name] = aspired
        self.calls.append(aspired.name)

    # -- edits ---------------------------------------------------------------------

    @rule(name=names, version=versions)
    def publish(self, name: str, version: int) -> None:
        """A writer renames a whole version into place."""
        if version in self.committed[name] or version in self.by_hand[name]:
            return
        temporary = f"/{name}/.tmp-{version}"
        self.files.write(f"{temporary}/model.pt", b"weights")
        self.files.write(f"{temporary}/servable.json", b"{}")
        self.files.rename(temporary, f"/{name}/{version}")
        self.base_paths.add(name)
        self.committed[name].add(version)

    @rule(name=names, version=versions)
    def write_by_hand(self, name: str, version: int) -> None:
        """Somebody copies a file into a directory without a manifest."""
        if version in self.committed[name]:
            return
        path = f"/{name}/{version}/table.csv"
        self.files.write(path, b"%f" % self.clock.now())
        self.base_paths.add(name)
        self.by_hand[name][version] = self.clock.now()

    @rule(name=names, version=versions)
    def commit_by_hand(self, name: str, version: int) -> None:
        """The manifest arrives last in a directory that was filled in place."""
        if version in self.by_hand[name]:
            self.files.write(f"/{name}/{version}/servable.json", b"{}")
            del self.by_hand[name][version]
            self.committed[name].add(version)

    @rule(name=names, version=versions)
    def remove(self, name: str, version: int) -> None:
        """A version directory goes."""
        if version in self.committed[name] or version in self.by_hand[name]:
            self.files.remove(f"/{name}/{version}")
            self.committed[name].discard(version)
            self.by_hand[name].pop(version, None)

    @rule(name=names)
    def remove_base_path(self, name: str) -> None:
        """A whole base path goes, as when a mount is lost."""
        if name in self.base_paths:
            self.files.remove(f"/{name}")
            self.base_paths.discard(name)
            self.committed[name].clear()
            self.by_hand[name].clear()

    @rule(name=names, junk=st.sampled_from(["7.tmp", "x", ".tmp-3", "-1"]))
    def write_junk(self, name: str, junk: str) -> None:
        """Things that are no versions lie about."""
        self.files.write(f"/{name}/{junk}/servable.json", b"{}")
        self.base_paths.add(name)

    @rule(duration_s=st.sampled_from([0.5, 1.0, SETTLE_S, 60.0]))
    def wait(self, duration_s: float) -> None:
        """Time passes."""
        self.clock.advance(duration_s)

    @rule(
        name=names,
        policy=policies,
        pinned=st.frozensets(versions, max_size=2),
    )
    def reconfigure(
        self, name: str, policy: VersionPolicy, pinned: frozenset[int]
    ) -> None:
        """The configuration of one servable changes."""
        self.config[name] = ServableToMonitor(name, f"/{name}", policy, pinned)
        self.source.update_config(self.config.values())
        self.compare()

    @precondition(lambda self: len(self.config) == len(NAMES))
    @rule(name=names)
    def leave_out(self, name: str) -> None:
        """A servable leaves the configuration and gets its one empty set."""
        was_told = name in self.told
        del self.config[name]
        self.calls.clear()
        self.source.update_config(self.config.values())
        assert self.calls.count(name) == int(was_told)
        if was_told:
            assert self.told.pop(name).versions == ()
        self.expected[name] = None
        self.listed[name] = set()
        self.sights.pop(name, None)
        self.source.poll_once()
        assert name not in self.told
        self.compare()

    @precondition(lambda self: len(self.config) < len(NAMES))
    @rule()
    def take_back(self) -> None:
        """A servable comes back and is looked at at once."""
        for name in NAMES:
            if name not in self.config:
                self.config[name] = ServableToMonitor(name, f"/{name}")
                self.source.update_config(self.config.values())
                self.compare()

    @rule()
    def poll(self) -> None:
        """The source looks, and must find what the model finds."""
        self.source.poll_once()
        self.compare()

    @rule(index=st.integers(1, 12))
    def poll_with_a_fault(self, index: int) -> None:
        """A failing look takes nothing away; the next one makes up for it."""
        before = {
            name: {data.id.version for data in told.versions}
            for name, told in self.told.items()
        }
        at_hand = {
            name: self.committed[name] | self.by_hand[name].keys() for name in NAMES
        }
        self.files.fail_call(index)
        self.source.poll_once()
        for name, old in before.items():
            if old and name in self.config and not self.may_empty(name):
                new = {data.id.version for data in self.told[name].versions}
                assert new, name
                assert new <= at_hand[name] | old
        self.files.fail_call(1_000_000)
        self.poll()

    # -- the model -----------------------------------------------------------------

    def may_empty(self, name: str) -> bool:
        servable = self.config[name]
        by_wish = servable.policy == Specific(()) and not servable.pinned
        return self.unload_when_empty or by_wish

    def compare(self) -> None:
        """Checks what was told, every servable having just been looked at."""
        for name, servable in self.config.items():
            self.examined: dict[int, tuple[float, float]] = {}
            chosen = list(
                choose(
                    servable.policy,
                    self.committed[name] | self.by_hand[name].keys(),
                    lambda version, name=name: self.is_ready(name, version),  # type: ignore[misc]
                    servable.pinned,
                ).versions
            )
            if name in self.base_paths:
                self.listed[name] = self.committed[name] | self.by_hand[name].keys()
                sights = self.sights.get(name, {}) | self.examined
                self.sights[name] = {
                    version: sight
                    for version, sight in sights.items()
                    if version in self.listed[name]
                }
            before = self.expected[name]
            unknown = name not in self.base_paths
            if unknown or (not chosen and not self.may_empty(name)):
                # Nothing is known, or nothing is left: the old set stays.
                self.expected[name] = before or []
            else:
                self.expected[name] = chosen + self.kept(name, chosen)
            told = self.told[name]
            assert [data.id.version for data in told.versions] == self.expected[name]

    def kept(self, name: str, chosen: list[int]) -> list[int]:
        """Returns what is pinned, was told, and cannot be found ready any more."""
        listed = self.listed[name]
        if self.unload_when_empty and not listed:
            return []
        return [
            version
            for version in self.expected[name] or ()
            if version in self.config[name].pinned and version not in chosen
        ]

    def is_ready(self, name: str, version: int) -> bool:
        now_s, sights = self.clock.now(), self.sights.get(name)
        is_known = version in self.listed[name]
        if version in self.committed[name]:
            self.examined[version] = (-1.0, now_s)
            return True
        touched_s = self.by_hand[name][version]
        before = (sights or {}).get(version)
        since_s = now_s
        if before is not None and before[0] == touched_s:
            since_s = before[1]
        self.examined[version] = touched_s, since_s
        # Quiet time counts once it was watched, but for what lay there all along.
        lay_there = before is None and (sights is None or is_known)
        is_still = now_s - since_s >= SETTLE_S or (
            lay_there and now_s - touched_s >= SETTLE_S
        )
        # What is aspired already stays so while its files change.
        return is_still or (is_known and version in (self.expected[name] or ()))

    @invariant()
    def payloads_name_their_directories(self) -> None:
        """Whatever is aspired lies under the base path of its servable."""
        for name, told in self.told.items():
            for data in told.versions:
                assert data.payload is not None
                assert data.payload.path == f"/{name}/{data.id.version}"
                assert data.payload.fingerprint


SourceMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestSourceMachine = SourceMachine.TestCase
