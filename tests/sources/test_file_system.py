"""The file-system source, stepped by hand over a fake file system and clock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.model_repository import ModelRepository
from sources.scan import ServableToMonitor
from sources.storage import Contents
from sources.storage_path import StoragePath
from sources.storage_threads import StorageThreads
from sources.version_policy import All, Latest, Specific, VersionPolicy
from tfs.core.errors import InvalidArgument, NotFound
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
            self.options, file_system=self.files, clock=self.clock
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


def test_files_that_appear_after_the_start_are_aspired() -> None:
    """An empty base path gives an empty set, a version in it one with a version.

    file_system_storage_path_source_test: FilesAppearAfterStartup.
    """
    w = world()
    w.files.make_folder("/models/digits")
    assert w.poll() == [("digits", [])]
    w.publish(3)
    assert w.poll() == [("digits", [3])]


def test_the_payload_is_the_directory_as_it_was_found() -> None:
    """Leading zeros stay in the path and vanish from the version.

    file_system_storage_path_source_test: MultipleVersions.
    """
    w = world()
    w.publish(4)
    w.publish("0042")
    w.publish("non_numerical_child")
    w.source.poll_once()
    (call,) = w.target.take()
    (data,) = call.versions
    assert data.id.version == 42
    assert data.payload is not None
    assert data.payload.path == "/models/digits/0042"
    assert data.payload.fingerprint


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Latest(), [8]),
        (Latest(0), [8]),
        (Latest(2), [8, 5]),
        (All(), [1, 2, 3, 5, 8]),
        (Specific((5, 1, 7)), [5, 1]),
    ],
)
def test_the_policy_decides(policy: VersionPolicy, expected: list[int]) -> None:
    """Each policy chooses among the directories that exist.

    file_system_storage_path_source_test: MultipleVersionsAtTheSameTime,
    NLatestVersions, SpecificVersions, DefaultVersionPolicy,
    DefaultNumLatestVersions.
    """
    w = world(monitor(policy=policy))
    for version in (3, 1, 8, 2, 5):
        w.publish(version)
    assert w.poll() == [("digits", expected)]


def test_a_specific_version_is_found_under_leading_zeros() -> None:
    """Version 17 may lie in 00017.

    file_system_storage_path_source_test: SpecificVersionsLeadingZeros.
    """
    w = world(monitor(policy=Specific((17,))))
    w.publish("00017")
    w.source.poll_once()
    (call,) = w.target.take()
    assert call.versions[0].payload is not None
    assert call.versions[0].payload.path == "/models/digits/00017"


def test_specific_of_nothing_unloads_all() -> None:
    """An empty list of versions is a wish, and is obeyed even by the guard.

    file_system_storage_path_source_test: SpecificVersionsEmpty.
    """
    w = world()
    w.publish(1)
    assert w.poll() == [("digits", [1])]
    w.source.update_config([monitor(policy=Specific())])
    assert w.target.versions("digits") == []
    assert w.source.problems()["digits"] == (
        "no version of digits is asked for: its policy, specific, lists none",
    )


def test_an_outlook_is_of_the_place_that_is_configured_now() -> None:
    """What is aspired from before says nothing of it; what settles may be a version."""
    w = world(settle_s=2.0)
    w.publish(1)
    w.poll()
    assert w.source.outlook("digits") is True
    w.source.update_config([monitor(base_path="/nowhere")])
    assert w.source.outlook("digits") is False
    w.files.write("/later/1/table.csv", b"key,value")
    w.source.update_config([monitor(base_path="/later")])
    assert w.source.outlook("digits") is None
    w.clock.advance(2.0)
    w.poll()
    assert w.source.outlook("digits") is True


def test_pinned_versions_come_with_whatever_policy() -> None:
    """A primary and a canary are aspired whatever the version policy says."""
    w = world(monitor(policy=Latest(), pinned=frozenset({1, 2})))
    for version in (1, 2, 3, 4):
        w.publish(version)
    assert w.poll() == [("digits", [4, 2, 1])]


def test_each_servable_gets_its_own_call() -> None:
    """One call carries one name.

    file_system_storage_path_source_test: MultipleServables.
    """
    w = world(monitor("a"), monitor("b"))
    w.publish(1, "a")
    w.publish(2, "b")
    assert w.poll() == [("a", [1]), ("b", [2])]


def test_nothing_new_is_nothing_to_say() -> None:
    """A poll that finds what the last one found makes no call."""
    w = world()
    w.publish(1)
    w.poll()
    assert w.poll() == []


def test_what_was_said_is_repeated_now_and_then() -> None:
    """A call that a target lost or failed on is repaired without a change."""
    w = world()
    w.publish(1)
    w.poll()
    w.clock.advance(30)
    assert w.poll() == [("digits", [1])]
    assert w.poll() == []


# -- configuration -----------------------------------------------------------------


def test_a_removed_servable_gets_one_empty_set_at_once() -> None:
    """Leaving the configuration unloads; arriving in it is looked at at once.

    file_system_storage_path_source_test: ChangeSetOfServables.
    """
    w = world(monitor("a"), monitor("b"))
    for name in ("a", "b", "c"):
        w.publish(1, name)
    w.poll()
    w.source.update_config([monitor("b"), monitor("c")])
    calls = w.target.take()
    assert [(c.name, len(c.versions)) for c in calls] == [("a", 0), ("c", 1)]
    assert w.poll() == []


def test_a_changed_policy_takes_effect_at_once() -> None:
    """A rollback does not wait for the next poll.

    file_system_storage_path_source_test: ChangeVersionPolicy.
    """
    w = world()
    w.publish(1)
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    w.source.update_config([monitor(policy=Specific((1,)))])
    assert w.last_reason() == "specific(1) of /models/digits: configuration changed"
    assert w.target.versions("digits") == [1]


def test_the_same_version_at_a_new_base_path_is_another_payload() -> None:
    """Moving a model's base path reloads it even where the number stays."""
    w = world()
    w.publish(1)
    w.source.poll_once()
    old = w.target.take()[0].versions[0].payload
    w.files.write("/elsewhere/1/servable.json", b"{}")
    w.source.update_config([monitor(base_path="/elsewhere")])
    new = w.target.take()[0].versions[0].payload
    assert new is not None
    assert old is not None
    assert (new.path, new == old) == ("/elsewhere/1", False)


def test_a_servable_left_out_and_back_before_a_look_stays() -> None:
    """Two configurations in quick succession unload nothing that both contain."""
    w = world(monitor("a"), monitor("b"))
    w.publish(1, "a")
    w.publish(1, "b")
    w.poll()
    w.source._thread = object()  # type: ignore[assignment]  # defers the scan
    w.source.update_config([monitor("b")])
    w.source.update_config([monitor("a"), monitor("b")])
    w.source.step()
    assert w.target.take() == []
    w.source._thread = None


def test_a_name_configured_twice_is_refused() -> None:
    """An invalid configuration leaves the one before it in force."""
    w = world()
    w.publish(1)
    with pytest.raises(InvalidArgument, match="digits"):
        w.source.update_config([monitor(), monitor()])
    assert w.poll() == [("digits", [1])]
    with pytest.raises(InvalidArgument, match="digits"):
        FileSystemSourceOptions((monitor(), monitor()))


def test_versions_can_be_required_at_the_start() -> None:
    """With require_versions, a servable without versions is an error.

    file_system_storage_path_source_test: NoVersionsAtStartup.
    """
    w = world(require_versions=True)
    w.files.make_folder("/models/digits")
    with pytest.raises(NotFound, match="digits"):
        w.source.start()
    w.publish(1)
    w.source.start()
    with pytest.raises(NotFound, match="other"):
        w.source.update_config([monitor(), monitor("other")])
    assert w.poll() == [("digits", [1])]


def test_giving_the_same_configuration_again_looks_again() -> None:
    """A reload finds new versions even where nothing is polled."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=0))
    w.publish(1)
    w.source.step()
    w.publish(2)
    w.source.update_config([monitor()])
    assert w.target.versions("digits") == [2]


# -- what must not unload ------------------------------------------------------------


def test_the_last_version_is_not_unloaded_because_it_vanished() -> None:
    """An empty listing keeps the last version loaded, and says so.

    file_system_storage_path_source_test: LastVersionNotRemoved.
    """
    w = world()
    w.publish(1)
    w.poll()
    w.files.remove("/models/digits/1")
    assert w.poll() == []
    assert "stays loaded" in " ".join(w.source.problems()["digits"])
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    assert w.source.problems() == {}


def test_the_last_version_is_unloaded_where_that_is_asked_for() -> None:
    """unload_when_empty gives TensorFlow Serving's behaviour."""
    w = world(unload_when_empty=True)
    w.publish(1)
    w.poll()
    w.files.remove("/models/digits/1")
    w.source.poll_once()
    assert w.target.versions("digits") == []
    assert w.last_reason() == "latest(1) of /models/digits: 1 gone"


def test_a_missing_base_path_unloads_nothing_even_then() -> None:
    """An unreadable base path tells nothing about its versions."""
    w = world(unload_when_empty=True)
    w.publish(1)
    w.poll()
    w.files.remove("/models/digits")
    assert w.poll() == []
    assert "does not exist" in w.source.problems()["digits"][0]


def test_one_missing_base_path_affects_only_its_servable() -> None:
    """A fault of one servable does not delay the others; it is said once."""
    w = world(monitor("absent"), monitor("digits"))
    w.publish(1)
    assert w.poll() == [("absent", []), ("digits", [1])]
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    assert list(w.source.problems()) == ["absent"]


def test_a_missing_base_path_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A problem that stays is not logged again at every poll, one that returns is."""
    w = world()
    for _ in range(3):
        w.poll()
    assert len(caplog.records) == 1
    w.publish(1)
    w.poll()
    w.files.remove("/models/digits")
    w.poll()
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING"]


def test_directories_renamed_away_are_dropped() -> None:
    """A directory whose name is no number any more is not a version.

    file_system_storage_path_source_test: ServableVersionDirRenamed.
    """
    w = world(monitor(policy=All()))
    for version in (1, 2, 3, 5, 8):
        w.publish(version)
    assert w.poll() == [("digits", [1, 2, 3, 5, 8])]
    w.files.rename("/models/digits/2", "/models/digits/2.denied")
    w.files.rename("/models/digits/5", "/models/digits/5.denied")
    w.files.remove("/models/digits/8")
    assert w.poll() == [("digits", [1, 3])]


def test_duplicate_names_give_one_version() -> None:
    """Several directories for one number aspire it once.

    file_system_storage_path_source_test: DuplicateVersions.
    """
    w = world(monitor(policy=All()))
    for name in ("0001", "001", "00001", "non_numerical_child"):
        w.publish(name)
    assert w.poll() == [("digits", [1])]


# -- readiness -----------------------------------------------------------------------


def test_a_version_written_in_place_waits_for_its_manifest() -> None:
    """Files that are still being written are not served, however long it takes."""
    w = world()
    w.publish(1)
    w.poll()
    w.files.write("/models/digits/2/model.pt", b"half")
    w.clock.advance(1000)
    assert [versions for _, versions in w.poll()] == [[1]]
    assert "version 2" in w.source.problems()["digits"][0]
    w.files.write("/models/digits/2/servable.json", b"{}")
    assert w.poll() == [("digits", [2])]


def test_a_hand_written_version_is_served_once_it_is_still() -> None:
    """Without a manifest, signatures.json and some quiet time are needed."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/model.pt", b"part")
    w.files.write("/models/digits/1/signatures.json", b"{}")
    assert w.poll() == [("digits", [])]
    w.clock.advance(1.5)
    w.files.write("/models/digits/1/model.pt", b"part and rest")
    assert w.poll() == []
    w.clock.advance(1.5)
    assert w.poll() == []
    w.clock.advance(0.5)
    assert w.poll() == [("digits", [1])]


def test_a_table_needs_no_signatures() -> None:
    """A platform that can tell its signatures itself needs quiet time only."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/table.csv", b"key,value\n")
    w.clock.advance(2)
    assert w.poll() == [("digits", [1])]


def test_base_path_that_is_a_version_is_told_so() -> None:
    """Whoever names one folder too many reads which one is meant."""
    w = world(ServableToMonitor("digits", "/models/digits/1"))
    w.publish(1)
    w.poll()
    told = " ".join(w.source.problems()["digits"])
    assert "it is a version itself; name /models/digits, in which it lies" in told


def test_base_path_that_holds_a_versions_files_is_told_so() -> None:
    """Whoever leaves the number out reads where the files belong."""
    w = world()
    w.files.write("/models/digits/model.pt", b"a package")
    w.poll()
    told = " ".join(w.source.problems()["digits"])
    assert "the files of a version lie in it; move them to /models/digits/1" in told


def test_file_of_another_kind_is_named_with_the_way_out() -> None:
    """What torch.save wrote, or another tool, shows what was dropped and what to do."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/model.pt", b"a state dict")
    w.files.write("/models/digits/2/model.onnx", b"of another tool")
    w.poll()
    told = " ".join(w.source.problems()["digits"])
    assert "model.pt alone does not say how it is called" in told
    assert "wait if it is still being copied, servable.json comes last" in told
    assert "tfs.export.save" in told
    assert "but model.onnx" in told


def test_what_was_written_long_ago_need_not_settle_again() -> None:
    """A restart serves a hand-written version at the first look."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/table.csv", b"key,value\n")
    w.clock.advance(3600)
    assert w.poll() == [("digits", [1])]


def test_a_clock_that_jumps_makes_no_copy_an_old_one() -> None:
    """Once the source runs, only quiet that it saw itself counts, not file times."""
    w = world(settle_s=2.0)
    w.publish(1)
    w.poll()
    w.files.write("/models/digits/2/table.csv", b"key,val")
    w.clock.set_wall(w.clock.wall_s() + 3600)
    assert w.poll() == []
    w.files.write("/models/digits/2/table.csv", b"key,value\na,1\n")
    w.clock.set_wall(w.clock.wall_s() - 7200)
    assert w.poll() == []
    w.clock.advance(2)
    assert w.poll() == [("digits", [2])]


def test_times_in_the_future_prove_nothing() -> None:
    """Files stamped by another machine's clock are watched for a while instead."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/table.csv", b"key,value\n")
    w.clock.set_wall(w.clock.wall_s() - 3600)
    assert w.poll() == [("digits", [])]
    w.clock.advance(2)
    assert w.poll() == [("digits", [1])]


def test_a_temporary_directory_is_never_a_version() -> None:
    """What writers have not renamed yet does not exist for the source."""
    w = world()
    w.files.write("/models/digits/.tmp-1-ab/servable.json", b"{}")
    assert w.poll() == [("digits", [])]


def test_a_file_named_like_a_version_is_not_one() -> None:
    """A version is a directory."""
    w = world()
    w.files.write("/models/digits/7", b"no directory")
    assert w.poll() == [("digits", [])]


def test_a_version_overwritten_in_place_is_told_as_another_payload() -> None:
    """New files under an old version show in its fingerprint once they are still."""
    w = world(settle_s=2.0)
    w.publish(1)
    w.source.poll_once()
    before = w.target.take()[0].versions[0].payload
    w.files.write("/models/digits/1/model.pt", b"other weights")
    assert w.poll() == []
    w.clock.advance(2)
    w.source.poll_once()
    (call,) = w.target.take()
    after = call.versions[0].payload
    assert call.reason == "latest(1) of /models/digits: 1 overwritten in place"
    assert before is not None
    assert after is not None
    assert before.path == after.path
    assert before.fingerprint != after.fingerprint
    assert w.poll() == []


def test_a_version_that_is_wanted_again_has_to_be_still_again() -> None:
    """What was written under it while nobody wanted it may be half a copy."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/table.csv", b"key,value\n")
    w.clock.advance(2)
    assert w.poll() == [("digits", [1])]
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    w.files.write("/models/digits/1/table.csv", b"key,va")
    w.files.remove("/models/digits/2")
    assert w.poll() == []
    w.clock.advance(1)
    w.files.write("/models/digits/1/table.csv", b"key,value\na,1\n")
    assert w.poll() == []
    w.clock.advance(2)
    assert w.poll() == [("digits", [1])]


def test_an_unreadable_version_that_serves_goes_on_serving() -> None:
    """A fault while reading one version's files takes nothing away."""
    w = world()
    w.publish(1)
    w.poll()
    w.files.break_path("/models/digits/1", OSError(5, "Input/output error"))
    assert w.poll() == []
    assert "Input/output error" in w.source.problems()["digits"][0]


def test_an_unreadable_new_version_leaves_the_old_one() -> None:
    """A version that cannot be read is not ready; the one before it stays."""
    w = world()
    w.publish(1)
    w.poll()
    w.publish(2)
    w.files.break_path("/models/digits/2", PermissionError(13, "Permission denied"))
    assert w.poll() == []
    w.files.break_path("/models/digits/2", None)
    assert w.poll() == [("digits", [2])]


def test_a_version_that_is_deleted_file_by_file_serves_to_the_end() -> None:
    """A version that is deleted file by file serves until its directory is gone."""
    w = world()
    w.publish(1)
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    w.files.write("/models/digits/2/assets/words", b"left")
    w.poll()
    w.files.remove("/models/digits/2/servable.json")
    w.files.remove("/models/digits/2/model.pt")
    assert w.poll() == []
    assert "stays while its directory is there" in w.source.problems()["digits"][0]
    w.files.remove("/models/digits/2")
    assert w.poll() == [("digits", [1])]


# -- reasons and problems --------------------------------------------------------------


def test_reasons_say_what_happened() -> None:
    """Every set carries why it is what it is."""
    w = world(monitor(policy=Latest(2)), unload_when_empty=True)
    w.publish(1)
    reasons = []
    for change in ("", "publish", "remove"):
        if change == "publish":
            w.publish(2)
        elif change == "remove":
            w.files.remove("/models/digits/1")
        w.source.poll_once()
        reasons.append(w.last_reason())
    prefix = "latest(2) of /models/digits: "
    assert reasons == [f"{prefix}found 1", f"{prefix}2 appeared", f"{prefix}1 gone"]


def test_a_specific_version_that_is_absent_is_a_problem() -> None:
    """A wish that cannot be met shows, and does not stop the others."""
    w = world(monitor(policy=Specific((1, 7))))
    w.publish(1)
    assert w.poll() == [("digits", [1])]
    assert "version 7" in w.source.problems()["digits"][0]


def test_a_tensorflow_model_is_told_as_one() -> None:
    """Somebody who points at a SavedModel learns what is wrong."""
    w = world()
    w.files.write("/models/digits/1/saved_model.pb", b"")
    w.poll()
    assert "SavedModel" in w.source.problems()["digits"][0]


# -- stepping and scheduling -------------------------------------------------------------


def test_polling_follows_the_period() -> None:
    """Without events a servable is looked at once per poll_wait_s."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=5.0))
    w.publish(1)
    due_s = w.source.step()
    assert due_s == w.clock.now() + 5.0
    w.publish(2)
    w.clock.advance(4)
    w.source.step()
    assert w.target.versions("digits") == [1]
    w.clock.advance(1)
    w.source.step()
    assert w.target.versions("digits") == [2]


def test_a_configuration_that_changes_nothing_stops_no_looks() -> None:
    """A reload for one model leaves another polled, and its new version settling."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=5.0, settle_s=2.0))
    w.publish(1)
    w.source.step()
    w.source.update_config([monitor(), monitor("other")])
    w.publish(2)
    w.clock.advance(5)
    w.source.step()
    assert w.target.versions("digits") == [2]
    w.files.write("/models/digits/3/table.csv", b"")
    w.source.update_config([monitor()])
    due_s = w.source.step()
    assert due_s == w.clock.now() + 2
    w.clock.advance(2)
    w.source.step()
    assert w.target.versions("digits") == [3]


def test_a_period_of_zero_looks_once() -> None:
    """poll_wait_s = 0 looks once, and again only for a new configuration.

    file_system_storage_path_source_test: PollFilesystemOnlyOnce.
    """
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=0))
    w.publish(1)
    assert w.source.step() is None
    w.publish(2)
    w.clock.advance(3600)
    assert w.source.step() is None
    assert w.target.versions("digits") == [1]
    w.source.update_config([monitor(policy=Latest(2))])
    assert w.target.versions("digits") == [2, 1]


def test_a_change_is_looked_at_at_once_but_not_in_a_frenzy() -> None:
    """A noted change brings the look forward; a burst of them brings one."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=60))
    w.publish(1)
    w.source.step()
    w.publish(2)
    calls = w.files.num_calls
    for _ in range(100):
        w.source.mark_changed("/models/digits/2/servable.json")
        w.source.step()
    assert w.files.num_calls == calls
    w.clock.advance(0.05)
    w.source.step()
    assert w.target.versions("digits") == [2]
    w.clock.advance(1)
    w.source.mark_changed("/models")
    assert w.source.step() == w.clock.now() + 60


def test_what_changes_while_a_look_goes_on_is_looked_at_again() -> None:
    """An event that comes during a long look is not taken for one that it has seen."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=600))
    w.publish(1)
    list_directories = w.files.list_directories

    def slowly(path: str) -> Sequence[str]:
        found = list_directories(path)
        if not w.target.calls:  # the first look: a version comes behind its back
            w.clock.advance(0.5)
            w.publish(2)
            w.source.mark_changed("/models/digits/2")
            w.clock.advance(0.5)
        return found

    w.files.list_directories = slowly  # type: ignore[method-assign]
    next_s = w.source.step()
    assert w.target.versions("digits") == [1]
    assert next_s == w.clock.now() + 1.0  # it rests for as long as it took
    w.clock.advance(1.0)
    w.source.step()
    assert w.target.versions("digits") == [2]


def test_a_settling_directory_is_looked_at_when_it_may_have_settled() -> None:
    """The next look is when the quiet time would be over, not a poll later."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=600, settle_s=2))
    w.files.write("/models/digits/1/table.csv", b"")
    assert w.source.step() == w.clock.now() + 2
    w.clock.advance(2)
    w.source.step()
    assert w.target.versions("digits") == [1]


class _Choosy(FakeFileSystem):
    """Files, of which nobody can say where those called bad lie."""

    def place(self, path: str) -> str:
        if "bad" in path:
            raise ValueError("no path")
        return super().place(path)


def test_a_path_that_nobody_can_place_is_its_servables_problem() -> None:
    """The others are looked at in the same round, and it in the next one."""
    clock = FakeClock()
    files = _Choosy(clock)
    source = FileSystemSource(
        FileSystemSourceOptions((monitor("bad"), monitor("good")), poll_wait_s=5),
        file_system=files,
        clock=clock,
    )
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    files.write("/models/good/1/servable.json")
    assert source.step() == clock.now() + 5
    assert target.versions("good") == [1]
    assert source.problems() == {"bad": ("cannot look at /models/bad of bad: no path",)}


def test_nothing_is_said_before_a_target_is_connected() -> None:
    """An unconnected source reads nothing and loses nothing."""
    clock = FakeClock()
    files = FakeFileSystem(clock)
    source = FileSystemSource(
        FileSystemSourceOptions((monitor(),), poll_wait_s=-1),
        file_system=files,
        clock=clock,
    )
    files.write("/models/digits/1/servable.json")
    source.poll_once()
    assert files.num_calls == 0
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    source.poll_once()
    assert target.versions("digits") == [1]


def test_a_closed_source_says_nothing() -> None:
    """After close no call comes, whoever polls."""
    w = world()
    w.publish(1)
    w.source.close()
    assert w.poll() == []
    w.source.close()


def test_a_target_that_fails_stops_only_its_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The other servables are told, and the failed one is told again later."""
    clock = FakeClock()
    files = FakeFileSystem(clock)
    told: list[str] = []

    def callback(aspired: object) -> None:
        name = aspired.name  # type: ignore[attr-defined]
        told.append(name)
        if name == "a":
            raise RuntimeError("no")

    source = FileSystemSource(
        FileSystemSourceOptions((monitor("a"), monitor("b")), poll_wait_s=-1),
        file_system=files,
        clock=clock,
    )
    source.set_aspired_versions_callback(callback)
    for name in ("a", "b"):
        files.write(f"/models/{name}/1/servable.json")
    source.poll_once()
    assert told == ["a", "b"]
    clock.advance(30)
    source.poll_once()
    assert told == ["a", "b", "a", "b"]


def test_every_failing_call_leaves_the_aspired_set_alone() -> None:
    """Whichever file-system call fails, no version is unloaded; the next poll mends it.

    The n-th call fails for n = 1, 2, ... until a poll no longer reaches it.
    """
    index = 0
    while True:
        index += 1
        w = world(monitor("a", All()), monitor("b"))
        for name in ("a", "b"):
            w.publish(1, name)
            w.publish(2, name)
        w.poll()
        w.publish(3, "a")
        w.publish(3, "b")
        calls = w.files.num_calls
        w.files.fail_call(index)
        told = dict(w.poll())
        reached = w.files.num_calls - calls >= index
        for name, kept in (("a", {1, 2}), ("b", set())):
            if name in told:
                assert kept <= set(told[name])
                assert told[name]
        told |= dict(w.poll())
        assert told == {"a": [1, 2, 3], "b": [3]}
        if not reached:
            break
    assert index > 10


# -- with the thread, by the fake clock -----------------------------------------------


def test_the_thread_polls_by_the_clock() -> None:
    """The source's own thread looks when its clock says so, and ends on close."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=5.0, watch=False))
    w.publish(1)
    with w.source:
        assert w.target.wait_for(lambda calls: len(calls) == 1)
        w.clock.block_until_sleepers(1)
        w.publish(2)
        w.clock.advance(5)
        assert w.target.wait_for(lambda calls: len(calls) == 2)
        w.source.update_config([monitor(policy=Specific((1,)))])
        assert w.source.wait_applied(w.clock.now() + 5)
        assert w.target.versions("digits") == [1]
    assert w.clock.num_sleepers == 0


def test_the_thread_looks_when_it_is_asked() -> None:
    """A look that is asked for does not wait, even if the source looks only once."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=0, watch=False))
    w.publish(1)
    with w.source:
        assert w.target.wait_for(lambda calls: len(calls) == 1)
        w.publish(2)
        w.source.look_soon()
        assert w.target.wait_for(lambda calls: len(calls) == 2)
        assert w.target.versions("digits") == [2]


def test_a_third_partys_version_is_ready_once_it_is_still() -> None:
    """A directory of an unknown platform counts once it has not changed for a while."""
    servable = ServableToMonitor("x", "/models/x", platform="acme")
    w = world(servable, settle_s=2.0)
    w.files.write("/models/x/1/model.acme", b"")
    assert w.poll() == [("x", [])]
    w.clock.advance(2)
    w.source.poll_once()
    (call,) = w.target.take()
    assert call.versions[0].payload is not None
    assert call.versions[0].payload.platform == "acme"


def test_a_third_partys_version_may_be_found_by_its_contents() -> None:
    """Where there are other platforms, still files that nobody here knows may be theirs."""
    servable = ServableToMonitor("x", "/models/x", platform="tensorflow")
    w = world(servable, settle_s=2.0, has_other_platforms=True)
    w.files.write("/models/x/1/model.acme", b"")
    w.files.write("/models/x/2/model.pt", b"")  # known, and its signatures are missing
    assert w.poll() == [("x", [])]
    w.clock.advance(2)
    assert w.poll() == [("x", [1])]


# -- events, polling and what becomes of them ----------------------------------------------


class FakeWatcher:
    """A watcher that does as it is told. Confined to the test's threads."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.paths: list[str] = []
        self.told: Callable[[str], None] | None = None
        self.closed = False

    def start(self, on_change: Callable[[str], None]) -> None:
        if self.refuses:
            raise OSError(24, "inotify instance limit reached")
        self.told = on_change

    def watch(self, paths: Iterable[str]) -> None:
        self.paths = list(paths)

    def ensure(self, path: str) -> bool:
        return path in self.paths

    def is_current(self, path: str) -> bool:
        return path in self.paths

    def close(self) -> None:
        self.closed = True


def started(
    watcher: FakeWatcher, events: bool, watch: bool | None = None
) -> tuple[FileSystemSource, FakeFileSystem, FakeClock, RecordingTarget[StoragePath]]:
    clock = FakeClock()
    files = FakeFileSystem(clock)
    files.events = events
    files.write("/models/digits/1/servable.json")
    source = FileSystemSource(
        FileSystemSourceOptions((monitor(),), poll_wait_s=5, rescan_s=600, watch=watch),
        file_system=files,
        clock=clock,
        watcher=watcher,
    )
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    source.start()
    assert target.wait_for(lambda calls: len(calls) == 1)
    clock.block_until_sleepers(1)
    return source, files, clock, target


@pytest.mark.parametrize(
    ("events", "watch", "watched"),
    [
        (True, None, True),
        (False, None, False),
        (True, False, False),
        (False, True, True),
    ],
)
def test_what_gives_no_events_is_polled(
    events: bool, watch: bool | None, watched: bool
) -> None:
    """A network mount is looked at every poll_wait_s, a watched path on events."""
    watcher = FakeWatcher()
    source, files, clock, target = started(watcher, events, watch)
    with source:
        assert watcher.paths == (["/models/digits"] if watched else [])
        files.write("/models/digits/2/servable.json")
        if watched:
            calls = files.num_calls
            clock.advance(5)
            clock.block_until_sleepers(1)
            assert files.num_calls == calls
            assert watcher.told is not None
            watcher.told("/models/digits/2")
        else:
            clock.advance(5)
        assert target.wait_for(lambda calls: len(calls) == 2)
    assert watcher.closed


def test_what_was_looked_at_before_the_start_is_watched_from_then_on() -> None:
    """A server applies its first config before the source's thread runs."""
    watcher, clock = FakeWatcher(), FakeClock()
    files = FakeFileSystem(clock)
    files.events = True
    files.write("/models/digits/1/servable.json")
    options = FileSystemSourceOptions(poll_wait_s=5, rescan_s=600)
    source = FileSystemSource(options, file_system=files, clock=clock, watcher=watcher)
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    source.update_config([monitor()])
    assert len(target.calls) == 1
    assert not watcher.paths
    source.start()
    clock.block_until_sleepers(1)
    with source:
        assert watcher.paths == ["/models/digits"]
        clock.advance(5)  # looked at once more: something may have come in between
        clock.block_until_sleepers(1)
        calls = files.num_calls
        clock.advance(5)
        clock.block_until_sleepers(1)
        assert files.num_calls == calls


def test_without_any_events_everything_is_polled() -> None:
    """A system that has no watches left still sees new versions."""
    watcher = FakeWatcher(refuses=True)
    source, files, clock, target = started(watcher, events=True)
    with source:
        files.write("/models/digits/2/servable.json")
        clock.advance(5)
        assert target.wait_for(lambda calls: len(calls) == 2)


@pytest.mark.parametrize("path", ["/models/digits", "/models/digits/2"])
def test_what_could_not_be_read_is_looked_at_soon_again(path: str) -> None:
    """No event tells that permissions were mended, or that a store answers again."""
    watcher = FakeWatcher()
    source, files, clock, target = started(watcher, events=True)
    with source:
        files.write("/models/digits/2/servable.json")
        files.break_path(path, PermissionError(13, "Permission denied"))
        assert watcher.told is not None
        watcher.told("/models/digits/2")
        clock.advance(1)
        clock.block_until_sleepers(1)
        assert len(target.calls) == 1
        files.break_path(path, None)
        clock.advance(5)
        assert target.wait_for(lambda calls: len(calls) == 2)


def test_a_lost_event_is_made_up_for() -> None:
    """What no event told is found by the look that comes anyway."""
    watcher = FakeWatcher()
    source, files, clock, target = started(watcher, events=True)
    with source:
        files.write("/models/digits/2/servable.json")
        clock.advance(600)
        assert target.wait_for(lambda calls: len(calls) == 2)


def test_a_base_path_that_became_another_directory_is_looked_at() -> None:
    """The check that comes with poll_wait_s notices a watch that went astray."""
    watcher = FakeWatcher()
    source, files, clock, target = started(watcher, events=True)
    with source:
        files.write("/models/digits/2/servable.json")
        watcher.paths.clear()
        clock.advance(5)
        assert target.wait_for(lambda calls: len(calls) == 2)


def test_a_repository_that_became_another_directory_is_looked_at() -> None:
    """One that is renamed away and back is served again as soon as it is there."""
    watcher = FakeWatcher()
    clock = FakeClock()
    files = FakeFileSystem(clock)
    files.events = True
    files.write("/models/digits/1/servable.json")
    source = FileSystemSource(
        FileSystemSourceOptions(poll_wait_s=5, rescan_s=600),
        file_system=files,
        clock=clock,
        watcher=watcher,
    )
    source.watch_repository(ModelRepository("/models"))
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    with source:
        assert target.wait_for(lambda calls: len(calls) == 1)
        clock.block_until_sleepers(1)
        files.write("/models/other/1/servable.json")
        watcher.paths.clear()
        clock.advance(5)
        assert target.wait_for(lambda calls: calls[-1].name == "other")


# -- base paths that may not answer --------------------------------------------------------


class SlowStore:
    """A file system whose stores and mounts answer when the test lets them. Thread-safe.

    Below ``s3://`` and ``/nfs`` everything hangs until ``answers`` is set.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.files = FakeFileSystem(clock)
        self.answers = threading.Event()
        self.is_asked = threading.Event()
        self.num_asked: Counter[str] = Counter()

    def list_directories(self, path: str) -> Sequence[str]:
        return self.files.list_directories(self._ask(path))

    def is_file(self, path: str) -> bool:
        return self.files.is_file(self._ask(path))

    def contents(self, path: str) -> Contents:
        return self.files.contents(self._ask(path))

    def place(self, path: str) -> str:
        return next((p for p in ("s3://bucket", "/nfs") if path.startswith(p)), "")

    def gives_events(self, path: str) -> bool:
        return not self.place(path)

    def _ask(self, path: str) -> str:
        if self.place(path):
            self.num_asked[path] += 1
            self.is_asked.set()
            assert self.answers.wait(20)
        return path.removeprefix("s3:/")


@dataclass
class SlowWorld:
    """A source of base paths, some of them in a store that hangs."""

    store: SlowStore
    source: FileSystemSource
    clock: FakeClock
    target: RecordingTarget[StoragePath] = field(default_factory=RecordingTarget)
    looked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        connect(self.source, self.target)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Waits for the source to look until something is so."""
        for _ in range(1000):
            if is_so():
                return
            assert self.looked.acquire(timeout=20)
        pytest.fail("the source looks and looks")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowWorld]:
    """A model "far" in the store, "mounted" on a mount, and "near" on the disk."""
    monkeypatch.setattr("sources.file_system.has_driver", lambda _: True)
    clock = FakeClock()
    store = SlowStore(clock)
    for path in ("/bucket/far", "/nfs/mounted", "/models/near"):
        store.files.write(f"{path}/1/servable.json")
    storage = StorageThreads(clock)
    looked = threading.Semaphore(0)
    source = FileSystemSource(
        FileSystemSourceOptions(poll_wait_s=5, watch=False),
        file_system=store,
        clock=clock,
        on_looked=looked.release,
        storage=storage,
        recall=lambda path: COPIES if path.endswith("/copied") else {},
    )
    yield SlowWorld(store, source, clock, looked=looked)
    store.answers.set()
    source.close()
    storage.close()


FAR = ServableToMonitor("far", "s3://bucket/far")
COPIES = {number: StoragePath(f"s3://bucket/copied/{number}", "f") for number in (7, 8)}
MOUNTED = ServableToMonitor("mounted", "/nfs/mounted")
NEAR = ServableToMonitor("near", "/models/near")


@pytest.mark.parametrize("hung", [FAR, MOUNTED], ids=lambda hung: hung.name)
def test_what_hangs_holds_up_no_other_base_path(
    slow: SlowWorld, hung: ServableToMonitor
) -> None:
    """What lies on the disk is found and swapped; what hangs is asked once meanwhile."""
    slow.source.update_config([hung, NEAR])
    slow.source.start()
    assert slow.store.is_asked.wait(20)
    slow.store.files.write("/models/near/2/servable.json")
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(1)
    assert slow.source.problems() == {}
    assert slow.source.at_hand(hung.name) == ()
    assert not slow.source.wait_applied(slow.clock.now())
    slow.clock.advance(1)
    slow.wait_until(lambda: bool(slow.source.problems()))
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(3)
    assert slow.target.wait_for(lambda calls: len(calls) == 3)
    assert [call.name for call in slow.target.calls] == ["near", hung.name, "near"]
    assert slow.source.problems() == {
        hung.name: (
            f"base path {hung.base_path} of {hung.name} has not answered for 2 s; it is "
            "looked at again as soon as it does",
        )
    }
    assert slow.source.wait_applied(slow.clock.now())  # nobody waits for it
    assert set(slow.store.num_asked.values()) == {1}
    slow.store.answers.set()
    assert slow.target.wait_for(lambda calls: calls[-1].name == hung.name)
    slow.wait_until(lambda: not slow.source.problems())
    assert slow.source.at_hand(hung.name) == (1,)


def test_a_path_that_stops_answering_keeps_what_it_serves(slow: SlowWorld) -> None:
    """Nothing is unloaded because a mount is dead, and it says so."""
    slow.store.answers.set()
    slow.source.update_config([MOUNTED])
    slow.source.start()
    assert slow.target.wait_for(lambda calls: len(calls) == 1)
    assert slow.source.wait_applied()
    slow.store.answers.clear()
    slow.store.is_asked.clear()
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(5)
    assert slow.store.is_asked.wait(20)
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(2)
    slow.wait_until(lambda: bool(slow.source.problems()))
    assert slow.target.versions("mounted") == [1]
    assert len(slow.target.calls) == 1


def test_what_was_copied_is_served_and_returned_to_while_the_store_hangs(
    slow: SlowWorld,
) -> None:
    """A start and a rollback need no store for what they find here."""
    copied = ServableToMonitor("copied", "s3://bucket/copied", settings="fast")
    slow.source.update_config([copied])
    slow.source.start()
    assert slow.store.is_asked.wait(20)
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(2)
    slow.wait_until(lambda: bool(slow.source.problems()))
    assert slow.target.versions("copied") == [8]
    (aspired,) = slow.target.calls
    assert aspired.versions[0].payload == replace(COPIES[8], settings="fast")
    assert aspired.reason.startswith("copy of 8 made before: base path s3://bucket")
    assert slow.source.at_hand("copied") == (7, 8)
    assert slow.source.outlook("copied") is True
    pinned = replace(copied, pinned=frozenset({7}))
    slow.source.update_config([pinned])
    assert slow.target.wait_for(lambda calls: len(calls) == 2)
    assert slow.target.versions("copied") == [8, 7]
    assert slow.source.wait_applied()
    slow.source.update_config([replace(pinned, policy=Specific((9,)))])
    assert slow.target.wait_for(lambda calls: len(calls) == 3)
    assert slow.target.versions("copied") == [7]
    slow.source.update_config([replace(copied, policy=Specific((9,)))])
    assert slow.source.wait_applied()
    assert len(slow.target.calls) == 3  # nothing to serve: nothing changes


@pytest.mark.parametrize("path", ["s3://bucket", "/nfs"])
def test_a_repository_that_hangs_holds_up_nothing(slow: SlowWorld, path: str) -> None:
    """Its models come when it answers; meanwhile it says what it waits for."""
    found = threading.Event()
    slow.source.watch_repository(ModelRepository(path), lambda _: found.set())
    slow.source.update_config([NEAR])
    slow.source.start()
    assert slow.target.wait_for(lambda calls: len(calls) == 1)
    assert slow.store.is_asked.wait(20)
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(2)
    slow.wait_until(lambda: bool(slow.source.repository_problem))
    assert slow.source.repository_problem == (
        f"model repository {path} has not answered for 2 s; it is looked at again as "
        "soon as it does"
    )
    assert slow.store.num_asked == {path: 1}
    slow.store.answers.set()
    assert found.wait(20)
    assert slow.source.repository_problem == ""


@pytest.mark.parametrize("path", ["s3://bucket", "/models"])
def test_a_look_that_raises_is_over(slow: SlowWorld, path: str) -> None:
    """Whatever a driver raises, on whichever thread, is told; the next look is believed."""
    slow.store.answers.set()
    where = path.removeprefix("s3:/")
    slow.store.files.break_path(where, RuntimeError("no credentials"))
    found = threading.Event()
    slow.source.watch_repository(ModelRepository(path), lambda _: found.set())
    slow.source.start()
    slow.wait_until(lambda: bool(slow.source.repository_problem))
    assert slow.source.repository_problem == (
        f"cannot list model repository {path}: no credentials"
    )
    slow.store.files.break_path(where, None)
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(5)
    assert found.wait(20)
    assert slow.source.repository_problem == ""


def test_a_look_that_began_under_another_configuration_is_not_followed(
    slow: SlowWorld,
) -> None:
    """What counts is the base path that is configured when it ends."""
    slow.source.update_config([ServableToMonitor("far", "s3://bucket/none")])
    slow.source.start()
    assert slow.store.is_asked.wait(20)
    slow.source.update_config([FAR])
    slow.store.answers.set()
    assert slow.target.wait_for(lambda calls: len(calls) == 1)
    assert [data.id.version for data in slow.target.calls[0].versions] == [1]
    assert slow.source.wait_applied()


def test_a_model_that_left_while_it_was_looked_at_is_not_told(
    slow: SlowWorld,
) -> None:
    """Nobody aspires what is not configured any more, and nothing spins for it."""
    slow.source.update_config([FAR])
    assert slow.store.is_asked.wait(20)
    slow.source.update_config([])
    slow.store.answers.set()
    while slow.source.step() is not None:
        pass  # until the look has ended
    assert [list(call.versions) for call in slow.target.calls] == [[]]
